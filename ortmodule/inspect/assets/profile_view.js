// Where the time goes: by operator, by module, by node. Without times: bytes and operations, as the plan has them.

class ProfileView {
  constructor() {
    this.by = 'operators';
    this.half = 'all';
    this.within = null; // of which group the nodes are shown
    this.element = el('div', { class: 'pane' });
  }

  enter(model) {
    if (this.model !== model) {
      this.model = model;
      this.within = null;
      this.half = 'all';
      this.timed = model.times.length > 0;
      this.rows = this.timed
        ? model.times
        : model.steps.map((step) => ({
            phase: step.half,
            op: format.op(step.op),
            name: step.node,
            calls: 1,
            seconds: null,
            bytes: step.moved,
            flops: step.flops,
            id: step.id,
          }));
    }
    this.draw();
    return this.element;
  }

  draw() {
    const rows = this.rows.filter(
      (row) =>
        (this.half === 'all' || row.phase === this.half) && (!this.within || this.within.key(row) === this.within.name),
    );
    const nodes = this.by === 'nodes' || this.within;
    const halves = [...new Set(this.rows.map((row) => row.phase))];
    const shown = nodes ? rows : this.grouped(rows);
    this.whole = this.timed ? sumOf(this.rows, (row) => row.seconds) : null;
    this.list = this.table(nodes, Math.max(...shown.map((row) => this.weight(row) || 0), 0));
    const seconds = sumOf(rows, (row) => row.seconds);
    const flops = sumOf(rows, (row) => (row.flops && row.seconds ? row.flops : 0));
    const inFlops = sumOf(rows, (row) => (row.flops && row.seconds ? row.seconds : 0));
    const { model } = this;
    const facts = this.timed
      ? [`${format.seconds(seconds / (model.runs || 1))} a run, ${model.runs} runs`]
      : ['nothing was timed: sizes and operations of the plan'];
    if (flops) facts.push(`${format.number(flops / inFlops / 1e9)} GFLOP/s in products and attention`);
    this.element.replaceChildren(
      el(
        'div',
        { class: 'toolbar' },
        el('h2', {}, 'Profile'),
        el('span', { class: 'dim' }, facts.join(', ')),
        this.within
          ? el(
              'button',
              {
                class: 'button',
                click: () => {
                  this.within = null;
                  this.draw();
                },
              },
              `${this.within.name || '(top)'} ×`,
            )
          : null,
        el('span', { class: 'grow' }),
        halves.length > 1
          ? segments([['all', 'Both'], ...halves.map((half) => [half, half])], this.half, (half) => {
              this.half = half;
              this.draw();
            })
          : null,
        segments(
          [
            ['operators', 'Operators'],
            ['modules', 'Modules'],
            ['nodes', 'Nodes'],
          ],
          this.within ? null : this.by,
          (by) => {
            this.by = by;
            this.within = null;
            this.draw();
          },
        ),
      ),
      this.list.element,
    );
    this.list.set(shown);
    this.list.order = { column: this.list.columns.findIndex((column) => column.main), down: true };
    this.list.sort();
    this.list.drawHead();
    this.list.select(app.node);
  }

  weight(row) {
    return this.timed ? row.seconds : row.bytes;
  }

  // Layers of one kind are one module: "bert.encoder.layer.*.attention".
  keyOf(row) {
    return this.by === 'modules' ? moduleOf(row.name).replace(/(^|[./])\d+(?=$|[./])/g, '$1*') : row.op;
  }

  grouped(rows) {
    const groups = groupsOf(rows, (row) => `${row.phase}\n${this.keyOf(row)}`);
    const known = (all, value) => (all.every((row) => value(row) !== null) ? sumOf(all, value) : null);
    return [...groups].map(([key, all]) => {
      const [phase, name] = key.split('\n');
      return {
        phase,
        op: name,
        name,
        nodes: all.length,
        calls: sumOf(all, (row) => row.calls),
        seconds: this.timed ? sumOf(all, (row) => row.seconds) : null,
        bytes: known(all, (row) => row.bytes),
        flops: this.by === 'modules' ? sumOf(all, (row) => row.flops) || null : known(all, (row) => row.flops),
        id: null,
      };
    });
  }

  table(nodes, most) {
    const perSecond = (value) => (row) => (row[value] === null || !row.seconds ? null : row[value] / row.seconds / 1e9);
    const rate = perSecond('bytes');
    const flops = perSecond('flops');
    const bar = (row) =>
      el(
        'span',
        { class: 'meter', style: 'display: block' },
        el('i', {
          class: row.phase,
          style: `width: ${(100 * (this.weight(row) || 0)) / (most || 1)}%`,
        }),
      );
    const groupName = this.by === 'modules' ? 'module' : 'operator';
    const columns = nodes
      ? [
          {
            label: 'operator',
            width: 'minmax(120px, 1fr)',
            kind: 'op',
            cell: (r) => el('span', {}, halfMark(r.phase), format.op(r.op)),
            sort: (r) => r.op,
          },
          { label: 'node', width: 'minmax(150px, 2fr)', cell: (r) => pathOf(r.name), sort: (r) => r.name },
        ]
      : [
          {
            label: groupName,
            width: 'minmax(180px, 2fr)',
            kind: 'op',
            cell: (r) => el('span', {}, halfMark(r.phase), r.op || '(top)'),
            sort: (r) => r.op,
          },
          { label: 'nodes', width: '56px', num: true, cell: (r) => format.count(r.nodes), sort: (r) => r.nodes },
        ];
    const times = [
      {
        label: 'time',
        width: '80px',
        num: true,
        main: true,
        title: 'of one run',
        cell: (r) => format.seconds(r.seconds / (this.model.runs || 1)),
        sort: (r) => r.seconds,
      },
      {
        label: 'share',
        width: '62px',
        num: true,
        cell: (r) => format.share(r.seconds / this.whole),
        sort: (r) => r.seconds,
      },
      {
        label: 'a call',
        width: '76px',
        num: true,
        cell: (r) => format.seconds(r.seconds / r.calls),
        sort: (r) => r.seconds / r.calls,
      },
    ];
    const sizes = [
      {
        label: 'moves',
        width: '80px',
        num: true,
        main: !this.timed,
        title: 'bytes read and made in one call',
        cell: (r) => (r.bytes === null ? '–' : format.bytes(r.bytes / r.calls)),
        sort: (r) => (r.bytes === null ? null : r.bytes / r.calls),
      },
      {
        label: 'computes',
        width: '88px',
        num: true,
        title: 'multiplications and additions in one call',
        cell: (r) => (r.flops === null ? '–' : format.flops(r.flops / r.calls)),
        sort: (r) => (r.flops === null ? null : r.flops / r.calls),
      },
    ];
    const rates = [
      { label: 'GB/s', width: '58px', num: true, cell: (r) => format.number(rate(r)), sort: rate },
      { label: 'GFLOP/s', width: '66px', num: true, cell: (r) => format.number(flops(r)), sort: flops },
    ];
    const meter = { label: '', width: 'minmax(60px, 1fr)', cell: bar };
    const all = this.timed ? [...columns, meter, ...times, ...sizes, ...rates] : [...columns, meter, ...sizes];
    return new List(all, {
      idOf: (row) => row.id,
      least: nodes ? 860 : 820,
      choose: (id, row) => (nodes ? app.select(id) : this.enterGroup(row)),
    });
  }

  enterGroup(row) {
    const by = this.by;
    this.within = { name: row.op, key: (one) => (by === this.by ? this.keyOf(one) : one.op) };
    this.half = row.phase;
    this.draw();
  }

  select(id) {
    const time = id === null ? null : this.rows.find((row) => row.id === id);
    if (time && !this.list.select(id)) {
      this.by = 'nodes';
      this.within = null;
      this.half = 'all';
      this.draw();
    }
    this.list.select(id);
  }
}
