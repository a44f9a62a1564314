// The plan: the steps of both halves in the order in which they are issued.

class PlanView {
  constructor() {
    this.half = 'all';
    this.filter = '';
    this.element = el('div', { class: 'pane' });
  }

  enter(model) {
    if (this.model !== model) {
      this.model = model;
      this.half = 'all';
      this.list = this.table(model);
    }
    this.draw();
    this.list.select(app.node);
    return this.element;
  }

  table(model) {
    const streams = new Set(model.steps.map((step) => step.stream)).size > 1;
    const providers = model.steps.some((step) => step.provider);
    const columns = [
      { label: 'step', width: '48px', num: true, cell: (s) => String(s.place), sort: (s) => s.place },
      {
        label: 'operator',
        width: 'minmax(130px, 1.1fr)',
        kind: 'op',
        cell: (s) => el('span', {}, halfMark(s.half), format.op(s.op)),
        sort: (s) => format.op(s.op),
      },
      { label: 'node', width: 'minmax(160px, 2.3fr)', cell: (s) => pathOf(s.node), sort: (s) => s.node },
      {
        label: 'makes',
        width: 'minmax(110px, 1.3fr)',
        kind: 'mono dim',
        cell: (s) => s.outputs.map((v) => v.type).join(', '),
      },
      {
        label: 'moves',
        width: '78px',
        num: true,
        title: 'bytes that it reads and makes',
        cell: (s) => format.bytes(s.moved),
        sort: (s) => s.moved,
      },
      {
        label: 'computes',
        width: '86px',
        num: true,
        title: 'multiplications and additions',
        cell: (s) => (s.flops === null ? '–' : format.flops(s.flops)),
        sort: (s) => s.flops,
      },
      {
        label: 'held',
        width: '78px',
        num: true,
        title: 'bytes that are held while it runs',
        cell: (s) => format.bytes(model.record.live[s.place]),
        sort: (s) => model.record.live[s.place],
      },
    ];
    columns.splice(3, 0, { label: 'kind', width: '92px', kind: 'dim', cell: (s) => s.kind, sort: (s) => s.kind });
    if (streams)
      columns.push({ label: 'stream', width: '58px', num: true, cell: (s) => String(s.stream), sort: (s) => s.stream });
    if (providers) columns.push({ label: 'provider', width: '78px', cell: (s) => s.provider, sort: (s) => s.provider });
    if (model.times.length) {
      columns.push({
        label: 'time',
        width: '76px',
        num: true,
        title: 'mean of the runs that were timed',
        cell: (s) => format.seconds(this.time(s)),
        sort: (s) => this.time(s),
      });
    }
    return new List(columns, { idOf: (step) => step.id, choose: (id) => app.select(id), least: 840 });
  }

  time(step) {
    const time = step.id === null ? null : this.model.nodes.get(step.id).time;
    return time ? time.seconds / time.calls : null;
  }

  draw() {
    const { model } = this;
    const halves = model.record.halves.map((half) => half.name);
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = model.steps.filter(
      (step) =>
        (this.half === 'all' || step.half === this.half) &&
        words.every((word) => `${step.op} ${step.node}`.toLowerCase().includes(word)),
    );
    const input = el('input', {
      type: 'search',
      placeholder: 'Filter',
      value: this.filter,
      'aria-label': 'Filter steps',
      input: (event) => {
        this.filter = event.target.value;
        this.draw();
        this.element.querySelector('input').focus();
      },
    });
    const flops = sumOf(shown, (step) => step.flops);
    const sums = [`${format.count(shown.length)} steps`, `${format.bytes(sumOf(shown, (s) => s.moved))} moved`];
    if (flops) sums.push(`${format.flops(flops)} computed`);
    this.element.replaceChildren(
      el(
        'div',
        { class: 'toolbar' },
        el('h2', {}, 'Plan'),
        el('span', { class: 'dim' }, sums.join(', ')),
        el('span', { class: 'grow' }),
        input,
        halves.length > 1
          ? segments([['all', 'Both'], ...halves.map((half) => [half, half])], this.half, (half) => {
              this.half = half;
              this.draw();
            })
          : null,
      ),
      this.list.element,
    );
    this.list.set(shown);
    this.list.select(app.node);
    const end = input.value.length;
    input.setSelectionRange(end, end);
  }

  select(id) {
    this.list.select(id);
  }
}
