// The pane at the side: all that is known of the selected node, and the ways from it to others and to the views.

const details = {
  draw() {
    const pane = $('details');
    const { model, node: id } = app;
    $('main').classList.toggle('wide', id === null);
    if (id === null) return pane.replaceChildren();
    const node = model.nodes.get(id);
    const version = model.last(id);
    pane.scrollTop = 0;
    return pane.replaceChildren(
      ...[
        el(
          'button',
          { class: 'close', title: 'Close (Esc)', 'aria-label': 'Close', click: () => app.select(null) },
          '×',
        ),
        el('div', { class: 'op' }, format.op(version.op)),
        el('div', { class: 'name mono' }, version.name || version.outputs[0]?.[0] || ''),
        this.chips(node, version),
        this.ways(node),
        this.figures(node),
        this.values(
          'Inputs',
          version.inputs.map((name) => [name, model.typeOf(name)]),
          (name) => this.maker(name),
        ),
        this.values('Outputs', version.outputs, (name) => this.readers(name)),
        this.attributes(version),
        this.notes(version),
        this.storages(node),
        this.changes(node),
      ].filter(Boolean),
    );
  },

  chips(node, version) {
    const { model } = app;
    return el('div', {}, [
      el('span', { class: `chip ${version.phase}` }, version.phase),
      ' ',
      version.provider ? el('span', { class: 'chip' }, version.provider) : null,
      ' ',
      node.died === null ? null : el('span', { class: 'chip gone' }, `gone since ${titleOf(model.events[node.died])}`),
    ]);
  },

  ways(node) {
    const { model } = app;
    const way = (view, label, there) =>
      el(
        'button',
        {
          disabled: !there || app.view === view,
          click: () => app.go(view),
        },
        label,
      );
    return el('div', { class: 'goes' }, [
      way('graph', 'Graph', true),
      way('plan', 'Plan', node.step !== null),
      way('memory', 'Memory', node.blocks.length > 0),
      way('profile', 'Profile', node.time !== null || (!model.times.length && node.step !== null)),
      el('button', { click: () => app.draw(node.id) }, 'Draw around it'),
    ]);
  },

  figures(node) {
    const rows = [];
    const { step, time } = node;
    if (step) {
      rows.push(['step', `${step.place} of ${app.model.steps.length}, ${step.kind}`]);
      if (step.moved !== null) rows.push(['reads and makes', format.bytes(step.moved)]);
      if (step.flops !== null) rows.push(['operations', format.flops(step.flops)]);
      rows.push(['held meanwhile', format.bytes(app.model.record.live[step.place])]);
    }
    if (time) {
      const { seconds, calls, bytes, flops } = time;
      rows.push([
        'time',
        `${format.seconds(seconds / calls)} × ${calls}, ${format.share(seconds / app.model.seconds)}`,
      ]);
      if (bytes !== null && seconds) rows.push(['moves', `${format.number(bytes / seconds / 1e9)} GB/s`]);
      if (flops !== null && seconds) rows.push(['computes', `${format.number(flops / seconds / 1e9)} GFLOP/s`]);
    }
    if (!rows.length) return null;
    return el(
      'div',
      {},
      el('h3', {}, 'In a run'),
      el(
        'dl',
        {},
        rows.map(([name, text]) => [el('dt', {}, name), el('dd', {}, text)]),
      ),
    );
  },

  values(title, values, others) {
    const shown = values.filter(([name]) => name);
    if (!shown.length) return null;
    return el(
      'div',
      {},
      el('h3', {}, title),
      shown.map(([name, type]) =>
        el(
          'div',
          { class: 'value' },
          el('span', { class: 'mono' }, name),
          ' ',
          el('span', { class: 'dim mono' }, type || ''),
          el('span', { class: 'to' }, others(name)),
        ),
      ),
    );
  },

  // Of the graph in which the node was last.
  around() {
    const { model } = app;
    const node = model.nodes.get(app.node);
    return node.died === null ? model.final : model.states.at(node.died - 1);
  },

  maker(name) {
    const id = this.around().producer(name);
    if (id !== undefined) return this.way(id);
    const source = app.model.sources.get(name);
    if (!source) return el('span', { class: 'dim' }, 'input of the graph');
    const text = source.constant ? `constant${source.text ? ` ${source.text}` : ''}` : 'input of the graph';
    return el('span', { class: 'dim' }, text);
  },

  readers(name) {
    const state = this.around();
    const all = state.readersOf(name);
    const parts = all.slice(0, 6).map((id) => el('div', {}, this.way(id)));
    if (all.length > 6) parts.push(el('div', { class: 'dim' }, `and ${all.length - 6} more`));
    if (state.outputs.includes(name)) parts.push(el('div', { class: 'dim' }, 'output of the graph'));
    if (!parts.length) parts.push(el('div', { class: 'dim' }, 'nobody reads it'));
    return el('span', {}, parts);
  },

  way(id) {
    const node = this.around().node(id) || app.model.last(id);
    return el(
      'button',
      { class: 'link', title: node.name, click: () => app.select(id) },
      `${format.op(node.op)} `,
      el('span', { class: 'dim' }, node.name),
    );
  },

  attributes(version) {
    if (!version.attributes.length) return null;
    const rows = version.attributes.map(([name, text]) => [
      el('dt', { class: 'mono' }, name),
      el('dd', {}, text.includes('\n') || text.length > 90 ? el('pre', {}, text) : el('span', { class: 'mono' }, text)),
    ]);
    return el('div', {}, el('h3', {}, 'Attributes'), el('dl', {}, rows));
  },

  notes(version) {
    const rows = Object.entries(version.metadata);
    if (!rows.length) return null;
    return el(
      'div',
      {},
      el('h3', {}, 'Notes'),
      rows.map(([name, text]) => [el('div', { class: 'mono dim' }, name), el('pre', {}, text)]),
    );
  },

  storages(node) {
    if (!node.blocks.length) return null;
    return el(
      'div',
      {},
      el('h3', {}, 'Memory'),
      node.blocks.map((block) =>
        el(
          'div',
          { class: 'value' },
          el('span', { class: 'mono' }, block.value),
          ` ${format.bytes(block.bytes)}`,
          block.saved ? [' ', el('span', { class: 'chip' }, 'saved for backward')] : null,
          el(
            'span',
            { class: 'to dim' },
            `steps ${block.first} to ${block.end - 1}, at ${format.bytes(block.offset)} of the arena`,
          ),
        ),
      ),
    );
  },

  changes(node) {
    const { model } = app;
    if (!model.hasHistory) return null;
    const signs = { added: ['+', 'plus'], removed: ['−', 'minus'], changed: ['~', 'tilde'] };
    return el(
      'div',
      {},
      el('h3', {}, 'What happened to it'),
      node.events.map(([place, what]) => {
        const [sign, kind] = signs[what];
        const words = what === 'changed' ? `: ${this.difference(node, place)}` : '';
        return el(
          'div',
          { class: 'event' },
          el('span', { class: `mono ${kind}` }, sign),
          el(
            'button',
            { class: 'link', click: () => app.go('graph', { event: place, mode: 'diff' }) },
            titleOf(model.events[place]),
            el('span', { class: 'dim' }, words),
          ),
        );
      }),
    );
  },

  difference(node, place) {
    const { model } = app;
    const pair = model.events[place].replaced.find(([, now]) => model.versions[now].node === node.id);
    return pair ? differenceOf(model.versions[pair[0]], model.versions[pair[1]]) : '';
  },
};

// "constant_folding, round 2" or, of a stage, its name.
function titleOf(event) {
  return event.pass ? `${event.pass}${event.round ? `, round ${event.round + 1}` : ''}` : event.stage;
}
