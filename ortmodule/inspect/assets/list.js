// A list of any length of which the visible rows alone are elements; it sorts, selects and is walked with the keys.

const ROW = 25;
const HEAD = 29;

class List {
  // columns: {label, width, cell(item) -> node or text, sort(item) -> number or text, num}; options: idOf(item) -> id
  // of a node or null, choose(id, item), rowClass(item), least (pixels below which the list scrolls sideways).
  constructor(columns, options) {
    this.columns = columns;
    this.options = options;
    this.items = [];
    this.order = null;
    this.at = -1;
    this.space = el('div', { class: 'space' });
    this.head = el('div', { class: 'head', role: 'row' });
    this.element = el(
      'div',
      {
        class: 'list',
        tabindex: '0',
        role: 'grid',
        style: `--columns: ${columns.map((c) => c.width).join(' ')}; --least: ${options.least || 0}px`,
        keydown: (event) => this.key(event),
        scroll: () => this.draw(),
      },
      options.bare ? null : this.head,
      this.space,
    );
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.drawHead();
  }

  set(items) {
    this.all = items;
    this.sort();
    this.element.scrollTop = 0;
    this.select(app.node, false);
  }

  sort() {
    this.items = this.all;
    if (this.order) {
      const { column, down } = this.order;
      const keyed = this.all.map((item, place) => [this.columns[column].sort(item), place, item]);
      // What is not known comes last either way.
      const rank = (value) => (value === null || value === undefined ? 1 : 0);
      keyed.sort(([a, i], [b, j]) => rank(a) - rank(b) || (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1) || i - j);
      this.items = keyed.map(([, , item]) => item);
    }
    this.space.style.height = `${this.items.length * ROW}px`;
    this.element.setAttribute('aria-rowcount', this.items.length);
    this.places = null;
    this.draw();
  }

  sortBy(column) {
    const numeric = this.columns[column].num;
    const before = this.order && this.order.column === column ? this.order.down : null;
    if (before === null) this.order = { column, down: Boolean(numeric) };
    else if (before === Boolean(numeric)) this.order = { column, down: !before };
    else this.order = null;
    this.sort();
    this.drawHead();
    this.select(app.node, false);
  }

  drawHead() {
    this.head.replaceChildren(
      ...this.columns.map((column, place) => {
        const sorted = this.order && this.order.column === place;
        const label = column.label + (sorted ? (this.order.down ? ' ↓' : ' ↑') : '');
        const attributes = { class: column.num ? 'num' : '', title: column.title };
        if (!column.sort) return el('span', attributes, label);
        return el('button', { ...attributes, click: () => this.sortBy(place) }, label);
      }),
    );
  }

  draw() {
    const top = this.element.scrollTop;
    const height = this.element.clientHeight;
    const first = Math.max(0, Math.floor(top / ROW) - 8);
    const last = Math.min(this.items.length, Math.ceil((top + height) / ROW) + 8);
    const rows = [];
    for (let place = first; place < last; place += 1) rows.push(this.row(place));
    this.space.replaceChildren(...rows);
  }

  row(place) {
    const item = this.items[place];
    const kind = this.options.rowClass ? this.options.rowClass(item) : '';
    const selected = place === this.at ? ' selected' : '';
    return el(
      'div',
      {
        class: `row ${kind}${selected}`,
        role: 'row',
        style: `top: ${place * ROW}px`,
        click: () => this.choose(place),
      },
      this.columns.map((column) => {
        const cell = column.cell(item);
        const text = typeof cell === 'string' ? cell : undefined;
        return el(
          'span',
          { class: column.num ? 'num' : column.kind || '', title: column.num ? undefined : text },
          cell,
        );
      }),
    );
  }

  choose(place) {
    if (place < 0 || place >= this.items.length) return;
    this.at = place;
    const item = this.items[place];
    this.show(place);
    this.draw();
    this.options.choose(this.options.idOf(item), item);
  }

  // Marks the row of a node; with `scroll`, brings it to where it is seen.
  select(id, scroll = true) {
    const current = this.items[this.at];
    if (!current || this.options.idOf(current) !== id || id === null) {
      if (!this.places) {
        this.places = new Map();
        this.items.forEach((item, place) => {
          const own = this.options.idOf(item);
          if (own !== null && !this.places.has(own)) this.places.set(own, place);
        });
      }
      this.at = this.places.has(id) ? this.places.get(id) : -1;
    }
    if (scroll && this.at >= 0) this.show(this.at);
    this.draw();
    return this.at >= 0;
  }

  show(place) {
    const room = this.element.clientHeight - (this.options.bare ? 0 : HEAD);
    const top = place * ROW;
    const far = top < this.element.scrollTop - ROW || top > this.element.scrollTop + room + ROW;
    if (far) this.element.scrollTop = top - room / 2;
    else if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + ROW > this.element.scrollTop + room) this.element.scrollTop = top + ROW - room;
  }

  key(event) {
    const page = Math.floor(this.element.clientHeight / ROW) - 2;
    const steps = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page };
    let place;
    if (event.key in steps) place = Math.min(this.items.length - 1, Math.max(0, this.at + steps[event.key]));
    else if (event.key === 'Home') place = 0;
    else if (event.key === 'End') place = this.items.length - 1;
    else return;
    event.preventDefault();
    this.choose(place);
  }
}
