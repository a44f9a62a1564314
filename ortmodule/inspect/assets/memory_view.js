// Memory over steps: the bytes that are held, who lies where in the arena, and what is held at the step under the
// cursor.

const EDGE = { left: 74, right: 16, top: 26, middle: 26, bottom: 20 };

class MemoryView {
  constructor() {
    this.source = 'planned';
    this.element = el('div', { class: 'pane' });
    this.canvas = el('canvas', {
      tabindex: '0',
      role: 'img',
      'aria-label': 'Memory over steps; left and right arrows move the cursor',
      pointerdown: (event) => this.down(event),
      pointermove: (event) => this.hover(event),
      pointerleave: () => tip.hide(),
      wheel: (event) => this.wheel(event),
      dblclick: () => this.range(0, this.data.steps),
      keydown: (event) => this.key(event),
    });
    this.chart = el('div', { class: 'chart' }, this.canvas);
    new ResizeObserver(() => this.paint()).observe(this.chart);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint());
    this.list = new List(
      [
        { label: 'bytes', width: '84px', num: true, cell: (b) => format.bytes(b.bytes), sort: (b) => b.bytes },
        {
          label: 'operator',
          width: 'minmax(130px, 1fr)',
          kind: 'op',
          cell: (b) => el('span', {}, halfMark(b.half), format.op(b.op)),
          sort: (b) => b.op,
        },
        { label: 'node', width: 'minmax(160px, 2.2fr)', cell: (b) => pathOf(b.node), sort: (b) => b.node },
        { label: 'value', width: 'minmax(110px, 1.2fr)', kind: 'mono dim', cell: (b) => b.value, sort: (b) => b.value },
        { label: 'for', width: '150px', cell: (b) => this.kinds[b.kind], sort: (b) => b.kind },
        {
          label: 'steps',
          width: '96px',
          num: true,
          cell: (b) => `${b.first} – ${b.end - 1}`,
          sort: (b) => b.end - b.first,
        },
      ],
      { idOf: (block) => block.id, choose: (id) => app.select(id), least: 720 },
    );
    this.list.order = { column: 0, down: true };
    this.list.drawHead();
  }

  enter(model) {
    if (this.model !== model) {
      this.model = model;
      this.kinds = kindsOf(model);
      this.placed = placedMemory(model);
      this.turnTo(this.placed && this.source === 'measured' ? 'measured' : 'planned');
    }
    this.draw();
    this.select(app.node, true);
    return this.element;
  }

  turnTo(source) {
    this.source = source;
    this.data = source === 'measured' ? this.placed : plannedMemory(this.model);
    this.from = 0;
    this.to = Math.max(1, this.data.steps);
    this.most = Math.max(1, ...this.data.live);
    this.cursor = Math.max(0, this.data.live.indexOf(this.most));
  }

  draw() {
    const known = new Set(this.data.rects.map((rect) => rect.kind));
    const legend = Object.entries(this.kinds)
      .filter(([kind]) => known.has(kind))
      .map(([kind, label]) => el('span', {}, el('i', { style: `background: var(--${kind})` }), label));
    this.held = el('div', { class: 'toolbar' });
    this.element.replaceChildren(
      el(
        'div',
        { class: 'toolbar' },
        el('h2', {}, 'Memory'),
        el('div', { class: 'legend' }, legend),
        el('span', { class: 'dim' }, this.data.note),
        el('span', { class: 'grow' }),
        this.from > 0 || this.to < this.data.steps
          ? el('button', { class: 'button', click: () => this.range(0, this.data.steps) }, 'All steps')
          : null,
        this.placed
          ? segments(
              [
                ['planned', 'Planned'],
                ['measured', 'Of the runs'],
              ],
              this.source,
              (source) => {
                this.turnTo(source);
                this.draw();
              },
            )
          : null,
      ),
      el('div', { class: 'memory' }, this.chart, el('div', { class: 'pane' }, this.held, this.list.element)),
    );
    this.paint();
    this.fill();
  }

  // What is held at the cursor.
  fill() {
    const { data, cursor } = this;
    const blocks = data.rects.filter((rect) => rect.first <= cursor && cursor < rect.end);
    const step = data.stepAt(cursor);
    const peak = data.live[cursor] === this.most ? ', the most of all steps' : '';
    this.held.replaceChildren(
      el(
        'span',
        {},
        `Step ${cursor}: `,
        el('b', {}, format.bytes(data.live[cursor])),
        ` held in ${blocks.length} blocks${peak}`,
      ),
      step
        ? el(
            'button',
            { class: 'link', click: () => app.select(step.id) },
            `${format.op(step.op)} `,
            el('span', { class: 'dim' }, step.node),
          )
        : '',
    );
    this.list.set(blocks);
    this.list.select(app.node, true);
  }

  geometry() {
    const { width, height } = this.chart.getBoundingClientRect();
    const liveHeight = Math.max(40, (height - EDGE.top - EDGE.middle - EDGE.bottom) * 0.3);
    const arenaTop = EDGE.top + liveHeight + EDGE.middle;
    const arenaHeight = Math.max(10, height - arenaTop - EDGE.bottom);
    const inner = Math.max(10, width - EDGE.left - EDGE.right);
    return {
      width,
      height,
      liveHeight,
      arenaTop,
      arenaHeight,
      inner,
      x: (step) => EDGE.left + ((step - this.from) / (this.to - this.from)) * inner,
      live: (bytes) => EDGE.top + liveHeight * (1 - bytes / this.most),
      y: (offset) => arenaTop + arenaHeight * (1 - offset / (this.data.size || 1)),
    };
  }

  paint() {
    if (!this.data || !this.chart.isConnected) return;
    const g = this.geometry();
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(g.width * ratio);
    this.canvas.height = Math.round(g.height * ratio);
    const c = this.canvas.getContext('2d');
    c.scale(ratio, ratio);
    c.font = `11px ${colour('sans')}`;
    this.paintAxes(c, g);
    c.save();
    c.beginPath();
    c.rect(EDGE.left, 0, g.inner, g.height);
    c.clip();
    this.paintLive(c, g);
    this.paintRects(c, g);
    this.paintCursor(c, g);
    c.restore();
  }

  paintAxes(c, g) {
    const label = (text, x, y, align, name = 'dim') => {
      c.fillStyle = colour(name);
      c.textAlign = align;
      c.fillText(text, x, y);
    };
    label('held', EDGE.left, 16, 'left');
    label('arena', EDGE.left, g.arenaTop - 8, 'left');
    label(format.bytes(this.most), EDGE.left - 8, EDGE.top + 8, 'right');
    label('0', EDGE.left - 8, EDGE.top + g.liveHeight, 'right');
    label(format.bytes(this.data.size), EDGE.left - 8, g.arenaTop + 8, 'right');
    label('0', EDGE.left - 8, g.arenaTop + g.arenaHeight, 'right');
    c.fillStyle = colour('raised');
    c.fillRect(EDGE.left, g.arenaTop, g.inner, g.arenaHeight);
    const span = this.to - this.from;
    const size =
      [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((s) => span / s <= 12) || Math.ceil(span / 10);
    for (let step = Math.ceil(this.from / size) * size; step < this.to; step += size)
      label(String(step), g.x(step), g.height - 6, 'left', 'faint');
    const { halfAt, steps } = this.data;
    if (halfAt > 0 && halfAt < steps && halfAt >= this.from && halfAt <= this.to) {
      label('forward', g.x(halfAt) - 7, 16, 'right', 'forward');
      label('backward', g.x(halfAt) + 7, 16, 'left', 'backward');
    }
    for (const [offset, text] of this.data.bands) label(text, EDGE.left + g.inner, g.y(offset) - 4, 'right');
  }

  paintLive(c, g) {
    const { live, halfAt, steps } = this.data;
    const area = (from, to, name) => {
      if (to <= from) return;
      c.beginPath();
      c.moveTo(g.x(from), g.live(0));
      for (let step = from; step < to; step += 1) {
        c.lineTo(g.x(step), g.live(live[step]));
        c.lineTo(g.x(step + 1), g.live(live[step]));
      }
      c.lineTo(g.x(to), g.live(0));
      c.fillStyle = colour(name);
      c.globalAlpha = 0.32;
      c.fill();
      c.globalAlpha = 1;
    };
    area(0, halfAt, 'forward');
    area(halfAt, steps, 'backward');
    if (halfAt > 0 && halfAt < steps) {
      c.fillStyle = colour('faint');
      c.fillRect(g.x(halfAt) - 0.5, 6, 1, g.height - 6 - EDGE.bottom);
    }
  }

  paintRects(c, g) {
    const colours = Object.fromEntries(Object.keys(this.kinds).map((kind) => [kind, colour(kind)]));
    const panel = colour('panel');
    const chosen = [];
    for (const rect of this.data.rects) {
      if (rect.offset === null || rect.end <= this.from || rect.first >= this.to) continue;
      const [x, y, width, height] = this.box(rect, g);
      c.fillStyle = colours[rect.kind];
      c.globalAlpha = app.node === null || rect.id === app.node ? 0.82 : 0.5;
      c.fillRect(x, y, width, height);
      c.globalAlpha = 1;
      if (width > 3 && height > 3) {
        c.strokeStyle = panel;
        c.lineWidth = 0.7;
        c.strokeRect(x, y, width, height);
      }
      if (rect.id !== null && rect.id === app.node) chosen.push([x, y, width, height]);
      if (height > 13 && width > 60) {
        c.fillStyle = panel;
        c.textAlign = 'left';
        const most = Math.floor((width - 8) / 6);
        const text = format.op(rect.op);
        c.fillText(text.length > most ? text.slice(0, most) : text, Math.max(x, EDGE.left) + 4, y + height / 2 + 4);
      }
    }
    c.strokeStyle = colour('text');
    c.lineWidth = 2;
    for (const [x, y, width, height] of chosen) c.strokeRect(x - 1, y - 1, width + 2, height + 2);
  }

  paintCursor(c, g) {
    const x = g.x(this.cursor);
    c.fillStyle = colour('accent');
    c.globalAlpha = 0.18;
    c.fillRect(x, EDGE.top - 6, Math.max(1, g.x(this.cursor + 1) - x), g.height - EDGE.top - EDGE.bottom + 6);
    c.globalAlpha = 1;
    c.fillRect(x, EDGE.top - 6, 1.5, g.height - EDGE.top - EDGE.bottom + 6);
  }

  box(rect, g) {
    const x = g.x(rect.first);
    const top = g.y(rect.offset + rect.bytes);
    return [x, top, Math.max(1, g.x(rect.end) - x), Math.max(1, g.y(rect.offset) - top)];
  }

  at(event) {
    const frame = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const g = this.geometry();
    const exact = this.from + ((x - EDGE.left) / g.inner) * (this.to - this.from);
    const step = Math.min(this.data.steps - 1, Math.max(0, Math.floor(exact)));
    let hit = null;
    if (y >= g.arenaTop && y <= g.arenaTop + g.arenaHeight) {
      for (const rect of this.data.rects) {
        if (rect.offset === null) continue;
        const [left, top, width, height] = this.box(rect, g);
        const inside = x >= left - 1 && x <= left + width + 1 && y >= top - 1 && y <= top + height + 1;
        if (inside && (!hit || rect.bytes < hit.bytes)) hit = rect;
      }
    }
    return { step, hit, exact };
  }

  hover(event) {
    if (event.buttons) return;
    const { step, hit } = this.at(event);
    const about = this.data.stepAt(step);
    const head = about
      ? `step ${step}: ${format.op(about.op)} ${about.node}\n${format.bytes(this.data.live[step])} held`
      : `step ${step}`;
    const block = hit
      ? [
          `${format.op(hit.op)} ${hit.node}`,
          `${hit.value ? `${hit.value}: ` : ''}${format.bytes(hit.bytes)}, steps ${hit.first} – ${hit.end - 1}`,
          this.kinds[hit.kind],
        ].join('\n')
      : head;
    tip.show(block, event);
  }

  // A click puts the cursor and selects; a drag moves what is shown.
  down(event) {
    const start = this.at(event);
    const { from, to } = this;
    let moved = false;
    const move = (now) => {
      const g = this.geometry();
      const shift = ((event.clientX - now.clientX) / g.inner) * (to - from);
      if (Math.abs(now.clientX - event.clientX) > 4) moved = true;
      if (moved && to - from < this.data.steps) this.range(from + shift, to + shift);
    };
    const up = () => {
      removeEventListener('pointermove', move);
      removeEventListener('pointerup', up);
      if (moved) return;
      this.cursor = start.step;
      this.fill();
      if (start.hit && start.hit.id !== null) app.select(start.hit.id);
      this.paint();
    };
    addEventListener('pointermove', move);
    addEventListener('pointerup', up);
  }

  wheel(event) {
    event.preventDefault();
    const { exact } = this.at(event);
    const span = this.to - this.from;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.range(this.from + (event.deltaX / 600) * span, this.to + (event.deltaX / 600) * span);
      return;
    }
    const wanted = Math.min(this.data.steps, Math.max(8, span * Math.exp(event.deltaY * 0.002)));
    const from = exact - ((exact - this.from) / span) * wanted;
    this.range(from, from + wanted);
  }

  range(from, to) {
    const span = Math.min(this.data.steps, to - from);
    const all = this.from === 0 && this.to === this.data.steps;
    this.from = Math.max(0, Math.min(from, this.data.steps - span));
    this.to = this.from + span;
    const allNow = this.from === 0 && this.to === this.data.steps;
    if (all !== allNow) this.draw();
    else this.paint();
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.cursor = Math.min(this.data.steps - 1, Math.max(0, this.cursor + step));
    this.fill();
    this.paint();
  }

  // Marks a node's blocks; from another view, the cursor goes to where the first is made.
  select(id, moves = false) {
    const own = id === null ? [] : this.data.rects.filter((rect) => rect.id === id);
    const held = own.some((rect) => rect.first <= this.cursor && this.cursor < rect.end);
    if (own.length && (moves || !held)) {
      this.cursor = own[0].first;
      if (this.cursor < this.from || this.cursor >= this.to) this.range(0, this.data.steps);
      this.fill();
    }
    this.list.select(id);
    this.paint();
  }
}
