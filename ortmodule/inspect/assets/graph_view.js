// The graphs before and after each pass: the passes at the left, what the chosen one changed at the right.

class GraphView {
  constructor() {
    this.event = null;
    this.mode = 'changes';
    this.whole = false;
    this.radius = 2;
    this.open = new Set();
    this.drawing = new Drawing();
    this.list = null;
    this.element = el('div', { class: 'split' });
  }

  enter(model, options = {}) {
    if (this.model !== model) {
      this.model = model;
      this.event = null;
      this.open.clear();
    }
    if (options.event !== undefined && options.event < model.events.length) this.event = options.event;
    if (this.event === null) this.event = lastChange(model);
    if (options.mode) this.mode = options.mode;
    if (!model.hasHistory && this.mode === 'changes') this.mode = 'after';
    const event = model.events[this.event];
    const none = !event.removed.length && !event.added.length && !event.replaced.length;
    if (none && ['changes', 'diff'].includes(this.mode) && options.event === undefined) this.mode = 'after';
    this.draw();
    return this.element;
  }

  state() {
    return { event: this.event, mode: this.mode };
  }

  draw() {
    this.element.replaceChildren(this.rail(), el('div', { class: 'pane' }, this.toolbar(), this.body()));
    const current = this.element.querySelector('[aria-current]');
    if (current) current.scrollIntoView({ block: 'nearest' });
    if (this.list) this.list.select(app.node);
  }

  rail() {
    const slowest = Math.max(...this.model.events.map((event) => (event.pass ? 0 : event.seconds)));
    return el(
      'nav',
      { class: 'rail', 'aria-label': 'Passes', keydown: (event) => this.key(event) },
      this.model.events.map((event, place) =>
        el(
          'button',
          {
            class: event.pass ? 'pass' : 'stage',
            'aria-current': place === this.event ? 'true' : undefined,
            title: `${titleOf(event)}: ${event.nodes} nodes, ${format.seconds(event.seconds)}`,
            click: () => app.go('graph', { event: place, mode: this.modeFor(place) }),
          },
          el('span', {}, titleOf(event)),
          countsOf(event),
          event.pass ? null : el('i', { class: 'bar', style: `width: ${(100 * event.seconds) / (slowest || 1)}%` }),
        ),
      ),
    );
  }

  modeFor(place) {
    const event = this.model.events[place];
    const changed = event.removed.length || event.added.length || event.replaced.length;
    if (['drawing', 'before', 'after'].includes(this.mode)) return this.mode;
    return changed ? this.mode : 'after';
  }

  toolbar() {
    const event = this.model.events[this.event];
    const none = !event.removed.length && !event.added.length && !event.replaced.length;
    const first = this.event === 0;
    const modes = [
      ['changes', 'Changes', none],
      ['diff', 'Diff', none],
      ['before', 'Before', first],
      ['after', 'After'],
      ['drawing', 'Drawing'],
    ];
    return el(
      'div',
      { class: 'toolbar' },
      el('h2', {}, titleOf(event)),
      el('span', { class: 'dim' }, `${event.nodes} nodes, ${format.seconds(event.seconds)}`),
      el('span', { class: 'grow' }),
      this.mode === 'diff'
        ? el(
            'label',
            {},
            el('input', {
              type: 'checkbox',
              checked: this.whole,
              change: (change) => {
                this.whole = change.target.checked;
                this.draw();
              },
            }),
            ' whole graph',
          )
        : null,
      this.mode === 'drawing' ? el('span', { class: 'dim' }, 'edges away') : null,
      this.mode === 'drawing'
        ? segments(
            [1, 2, 3, 4].map((n) => [n, String(n)]),
            this.radius,
            (radius) => {
              this.radius = radius;
              this.draw();
            },
          )
        : null,
      segments(modes, this.mode, (mode) => app.go('graph', { mode })),
    );
  }

  body() {
    const { model } = this;
    this.list = null;
    if (this.mode === 'changes') return this.changes();
    if (this.mode === 'drawing') {
      queueMicrotask(() => this.drawing.show(model.states.at(this.event), app.node, this.radius, this.marks()));
      return this.drawing.element;
    }
    if (this.mode === 'diff') {
      const lines = diffOf(model, this.event);
      return this.nodes(this.whole ? lines : withContext(lines));
    }
    const state = model.states.at(this.mode === 'before' ? this.event - 1 : this.event);
    const marks = this.marks();
    const signs = { added: '+', changed: '~', removed: '-' };
    return this.nodes(
      state.order.map((id) => ({
        sign: signs[marks.get(id)] || ' ',
        id,
        node: state.node(id),
        note: '',
      })),
    );
  }

  marks() {
    const { versions } = this.model;
    const event = this.model.events[this.event];
    return new Map([
      ...event.removed.map((version) => [versions[version].node, 'removed']),
      ...event.replaced.map(([, version]) => [versions[version].node, 'changed']),
      ...event.added.map(([version]) => [versions[version].node, 'added']),
    ]);
  }

  nodes(lines) {
    const classes = { '+': 'added', '-': 'removed', '~': 'changed', '…': 'rule' };
    const shown = { '-': '−' };
    const types = (node) => node.outputs.map(([, type]) => type).join(', ');
    const diff = this.mode === 'diff';
    const noted = diff && lines.some((line) => line.node && line.note);
    this.list = new List(
      [
        {
          label: '',
          width: '14px',
          kind: 'sign',
          cell: (line) => (line.sign === '…' ? '' : shown[line.sign] || line.sign),
        },
        {
          label: 'operator',
          width: 'minmax(120px, 1fr)',
          kind: 'op',
          cell: (line) => (line.node ? el('span', {}, halfMark(line.node.phase), format.op(line.node.op)) : ''),
        },
        {
          label: 'node',
          width: 'minmax(150px, 2.2fr)',
          cell: (line) => (line.node ? pathOf(line.node.name) : line.note),
        },
        {
          label: 'makes',
          width: 'minmax(90px, 1.2fr)',
          kind: 'mono dim',
          cell: (line) => (line.node ? types(line.node) : ''),
        },
        ...(noted
          ? [{ label: 'what changed', width: '130px', kind: 'dim', cell: (line) => (line.node ? line.note : '') }]
          : []),
      ],
      {
        idOf: (line) => (line.node ? line.id : null),
        rowClass: (line) => classes[line.sign] || '',
        choose: (id) => {
          if (id !== null) app.select(id);
        },
      },
    );
    this.list.set(lines);
    return this.list.element;
  }

  changes() {
    const kinds = patternsOf(this.model, this.event);
    const event = this.model.events[this.event];
    const rewired = event.replaced.length;
    const rest = rewired ? el('p', { class: 'dim' }, `${rewired} nodes changed in place; all are in the diff.`) : null;
    return el(
      'div',
      { class: 'fill' },
      el(
        'div',
        { class: 'cards' },
        kinds.map((kind, place) => this.card(kind, place)),
        rest,
      ),
    );
  }

  card(kind, place) {
    const key = `${this.event} ${place}`;
    const isOpen = this.open.has(key);
    const words = (counts) =>
      counts
        .slice(0, 8)
        .map(([op, n]) => (n > 1 ? `${op} ×${n}` : op))
        .join(', ') + (counts.length > 8 ? `, and ${counts.length - 8} more operators` : '');
    const rows = [];
    if (kind.gone.length) rows.push(el('div', { class: 'minus' }, `− ${words(kind.gone)}`));
    if (kind.come.length) rows.push(el('div', { class: 'plus' }, `+ ${words(kind.come)}`));
    for (const [op, what] of kind.words) rows.push(el('div', { class: 'tilde' }, `~ ${op}: ${what}`));
    const times = kind.places.length === 1 ? 'once' : `${kind.places.length} times`;
    return el(
      'article',
      { class: 'card' },
      el(
        'button',
        {
          'aria-expanded': String(isOpen),
          click: () => {
            if (isOpen) this.open.delete(key);
            else this.open.add(key);
            this.draw();
          },
        },
        el('span', { class: 'ops' }, rows),
        el('span', { class: 'times' }, `${times} ${isOpen ? '▾' : '▸'}`),
      ),
      isOpen ? el('div', { class: 'inner' }, this.places(kind)) : null,
    );
  }

  places(kind) {
    const most = 40;
    const parts = kind.places.slice(0, most).map((changes) =>
      el(
        'div',
        { class: 'place' },
        changes.slice(0, most).map(([sign, node, before]) => this.line(sign, node, before)),
        changes.length > most
          ? el('div', { class: 'dim' }, `and ${changes.length - most} more nodes, in the diff`)
          : null,
      ),
    );
    if (kind.places.length > most) {
      parts.push(el('div', { class: 'dim' }, `and ${kind.places.length - most} more places, in the diff`));
    }
    return parts;
  }

  line(sign, node, before) {
    const kind = { '-': 'minus', '+': 'plus', '~': 'tilde' }[sign];
    const words = before ? ` ${differenceOf(before, node)}` : '';
    return el(
      'button',
      {
        class: `line ${node.node === app.node ? 'selected' : ''}`,
        click: () => app.select(node.node),
        title: node.name,
        'data-node': node.node,
      },
      el('span', { class: `mono ${kind}` }, sign === '-' ? '−' : sign),
      el('span', { class: kind }, format.op(node.op)),
      el('span', {}, pathOf(node.name), el('span', { class: 'dim' }, words)),
    );
  }

  select(id) {
    if (this.mode === 'drawing') this.draw();
    else if (this.mode === 'changes') {
      for (const line of this.element.querySelectorAll('[data-node]')) {
        line.classList.toggle('selected', Number(line.dataset.node) === id);
      }
    } else if (this.list) this.list.select(id);
  }

  key(event) {
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
    event.preventDefault();
    this.turn(event.key === 'ArrowDown' ? 1 : -1);
    this.element.querySelector('[aria-current]').focus();
  }

  // To the next event, or the one before.
  turn(step) {
    const place = Math.min(this.model.events.length - 1, Math.max(0, this.event + step));
    app.go('graph', { event: place, mode: this.modeFor(place) });
  }
}

// The last event that turned nodes into others.
function lastChange(model) {
  for (let place = model.events.length - 1; place > 0; place -= 1) {
    const event = model.events[place];
    if (event.removed.length && event.added.length) return place;
  }
  return model.events.length - 1;
}

function countsOf(event) {
  const parts = [
    [event.removed.length, '−', 'minus'],
    [event.replaced.length, '~', 'tilde'],
    [event.added.length, '+', 'plus'],
  ];
  return el(
    'span',
    { class: 'counts' },
    parts.filter(([n]) => n).map(([n, sign, kind]) => el('span', { class: kind }, sign + n)),
  );
}
