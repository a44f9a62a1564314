// The first view: a session in figures, its stages and passes, the operators of its graph.

class Overview {
  constructor() {
    this.element = el('div', { class: 'fill' });
  }

  enter(model) {
    this.model = model;
    const { record } = model;
    this.element.replaceChildren(
      el(
        'div',
        { class: 'overview' },
        this.tiles(record),
        el('div', { class: 'columns' }, this.stages(), this.passes(), this.operators(), this.facts(record)),
      ),
    );
    return this.element;
  }

  select() {}

  tile(label, figure, note) {
    return el(
      'div',
      { class: 'tile' },
      el('div', { class: 'label' }, label),
      el('div', { class: 'figure' }, figure),
      el('div', { class: 'note' }, note || ' '),
    );
  }

  tiles(record) {
    const { model } = this;
    const { memory } = record;
    const halves = record.halves.map((half) => `${format.count(half.steps.length)} ${half.name}`).join(', ');
    const flops = sumOf(model.steps, (step) => step.flops);
    const training = record.halves.length > 1;
    const partly = memory.complete ? '' : ', as far as sizes are known';
    const parts = [this.tile('Steps', format.count(model.steps.length), training ? halves : 'of a run')];
    if (model.hasHistory) {
      parts.unshift(
        this.tile(
          'Nodes',
          format.count(model.final.order.length),
          `${format.count(model.events[0].nodes)} in the model`,
        ),
      );
    }
    if (model.seconds) {
      const shared = sumOf(model.times, (row) => row.seconds) / model.runs;
      parts.push(this.tile('Time in kernels', format.seconds(shared), `mean of ${model.runs} runs`));
    }
    parts.push(this.tile('Computes', format.flops(flops), 'products and attention'));
    if (training) {
      parts.push(this.tile('Peak of forward', format.bytes(memory.peak_forward_bytes), `planned${partly}`));
      parts.push(this.tile('Saved for backward', format.bytes(memory.saved_bytes), `planned${partly}`));
      parts.push(this.tile('Peak of backward', format.bytes(memory.peak_backward_bytes), `planned${partly}`));
    } else {
      parts.push(this.tile('Peak of a run', format.bytes(memory.peak_forward_bytes), `planned${partly}`));
    }
    const placed = record.placed.passing_bytes + record.placed.lasting_bytes;
    parts.push(
      placed
        ? this.tile('Arena', format.bytes(placed), 'of the runs, temporaries included')
        : this.tile('Arena', format.bytes(memory.arena_bytes), 'planned'),
    );
    return el('div', { class: 'tiles' }, parts);
  }

  box(title, head, rows) {
    return el(
      'section',
      { class: 'box' },
      el('h2', {}, title),
      el(
        'table',
        {},
        head
          ? el(
              'thead',
              {},
              el(
                'tr',
                {},
                head.map(([text, num]) => el('th', { class: num ? 'num' : '' }, text)),
              ),
            )
          : null,
        el('tbody', {}, rows),
      ),
    );
  }

  row(go, ...cells) {
    return el(
      'tr',
      go
        ? {
            'data-go': true,
            tabindex: '0',
            click: go,
            keydown: (event) => {
              if (event.key === 'Enter') go();
            },
          }
        : {},
      cells,
    );
  }

  stages() {
    const { model } = this;
    const stages = model.events.map((event, place) => [event, place]).filter(([event]) => !event.pass);
    const most = Math.max(...stages.map(([event]) => event.seconds));
    const total = sumOf(stages, ([event]) => event.seconds);
    return this.box(
      `Stages, ${format.seconds(total)} to compile`,
      [['stage'], ['nodes', true], ['', false], ['time', true]],
      stages.map(([event, place]) =>
        this.row(
          () => app.go('graph', { event: place }),
          el('td', {}, event.stage),
          el('td', { class: 'num' }, format.count(event.nodes)),
          el(
            'td',
            {},
            el('div', { class: 'meter' }, el('i', { style: `width: ${(100 * event.seconds) / (most || 1)}%` })),
          ),
          el('td', { class: 'num' }, format.seconds(event.seconds)),
        ),
      ),
    );
  }

  passes() {
    const { model } = this;
    if (!model.hasHistory) {
      return el(
        'section',
        { class: 'box' },
        el('h2', {}, 'Passes'),
        el('p', { class: 'dim' }, 'What passes did was not recorded for this session.'),
      );
    }
    const passes = model.events
      .map((event, place) => [event, place])
      .filter(([event]) => event.removed.length || event.added.length || event.replaced.length);
    return this.box(
      'What changed the graph',
      [['pass or stage'], ['changes', true], ['nodes', true]],
      passes
        .slice(1)
        .map(([event, place]) =>
          this.row(
            () => app.go('graph', { event: place, mode: 'changes' }),
            el('td', { class: 'cut', title: titleOf(event) }, titleOf(event)),
            el('td', { class: 'num' }, countsOf(event)),
            el('td', { class: 'num' }, format.count(event.nodes)),
          ),
        ),
    );
  }

  operators() {
    const { model } = this;
    const groups = [...groupsOf(model.steps, (step) => `${step.half}\n${step.op}`)].map(([key, steps]) => {
      const [half, op] = key.split('\n');
      const times = steps.map((step) => (step.id === null ? null : model.nodes.get(step.id).time)).filter(Boolean);
      const known = steps.filter((step) => step.moved !== null);
      return {
        half,
        op,
        count: steps.length,
        seconds: sumOf(times, (t) => t.seconds),
        bytes: known.length ? sumOf(known, (s) => s.moved) : null,
      };
    });
    const timed = model.seconds > 0;
    groups.sort((a, b) => (timed ? b.seconds - a.seconds : b.bytes - a.bytes));
    const head = [
      ['operator'],
      ['steps', true],
      ['moves', true],
      ...(timed
        ? [
            ['time', true],
            ['share', true],
          ]
        : []),
    ];
    return this.box(
      'Operators',
      head,
      groups
        .slice(0, 14)
        .map((group) =>
          this.row(
            () => app.go('profile'),
            el('td', { class: 'cut', title: group.op }, halfMark(group.half), format.op(group.op)),
            el('td', { class: 'num' }, format.count(group.count)),
            el('td', { class: 'num' }, format.bytes(group.bytes)),
            timed ? el('td', { class: 'num' }, format.seconds(group.seconds / model.runs)) : null,
            timed ? el('td', { class: 'num' }, format.share(group.seconds / model.seconds)) : null,
          ),
        ),
    );
  }

  facts(record) {
    const sizes = Object.entries(record.sizes)
      .map(([name, size]) => `${name} = ${size}`)
      .join(', ');
    const rows = [
      ['session', `${record.title}, ${record.mode}`],
      ['recorded', record.created.replace('T', ' ')],
      [
        'versions',
        Object.entries(record.versions)
          .map((pair) => pair.join(' '))
          .join(', '),
      ],
      ['threads', String(record.threads)],
      ['sizes', sizes || 'none is free'],
      ...Object.entries(record.notes),
    ];
    const box = this.box(
      'About',
      null,
      rows.map(([name, text]) => el('tr', {}, el('td', { class: 'dim' }, name), el('td', {}, text))),
    );
    const keys = [
      ['/', 'search'],
      ['1 – 5', 'views'],
      ['↑ ↓', 'walk a list'],
      ['[ ]', 'passes'],
      ['Esc', 'close'],
    ];
    box.append(
      el('h2', { style: 'margin: 16px 0 8px' }, 'Keys'),
      el(
        'div',
        { class: 'keys' },
        keys.map(([key, what]) => el('span', {}, el('kbd', {}, key), ` ${what}`)),
      ),
    );
    return box;
  }
}
