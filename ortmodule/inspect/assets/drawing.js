// A drawing of the graph around a node: in layers, from what it reads to what reads it.

const CARD = { width: 176, height: 40, gapX: 22, gapY: 34 };

// Layers of nodes within `radius` edges of `center`: {layers: [[item]], edges: [[from, to, value]]}. An item is a
// node of the state or a source (an input or a constant); of a value with many readers, the first few alone are
// drawn.
function neighbourhood(state, center, radius, most = 90) {
  const layerOf = new Map([[center, 0]]);
  const walk = (next, step) => {
    let front = [center];
    for (let depth = 1; depth <= radius && front.length; depth += 1) {
      const found = [];
      for (const id of front) {
        for (const other of next(id)) {
          if (layerOf.has(other) || layerOf.size >= most) continue;
          layerOf.set(other, step * depth);
          found.push(other);
        }
      }
      front = found;
    }
  };
  const before = (id) =>
    [...new Set(state.node(id).inputs)].map((name) => state.producer(name)).filter((other) => other !== undefined);
  const after = (id) => [...new Set(state.node(id).outputs.flatMap(([name]) => state.readersOf(name).slice(0, 8)))];
  walk(before, -1);
  walk(after, 1);
  return layered(state, layerOf, center);
}

function layered(state, layerOf, center) {
  const edges = [];
  const inside = [...layerOf.keys()];
  for (const id of inside) {
    for (const name of new Set(state.node(id).inputs)) {
      const from = state.producer(name);
      if (from !== undefined && layerOf.has(from)) edges.push([from, id, name]);
    }
  }
  // An edge leads downwards: what reads a node of its own layer or a later one goes below it.
  const place = new Map(state.order.map((id, i) => [id, i]));
  inside.sort((a, b) => place.get(a) - place.get(b));
  const into = groupsOf(edges, ([, to]) => to);
  for (const id of inside) {
    for (const [from] of into.get(id) || []) {
      if (layerOf.get(id) <= layerOf.get(from)) layerOf.set(id, layerOf.get(from) + 1);
    }
  }
  const keyed = groupsOf(inside, (id) => layerOf.get(id));
  for (const name of new Set(state.node(center).inputs)) {
    if (!name || state.producer(name) !== undefined) continue;
    const key = `value ${name}`;
    const layer = layerOf.get(center) - 1;
    if (!keyed.has(layer)) keyed.set(layer, []);
    keyed.get(layer).push(key);
    edges.push([key, center, name]);
  }
  const layers = [...keyed.keys()].sort((a, b) => a - b).map((layer) => keyed.get(layer));
  return { layers: untangled(layers, edges), edges };
}

// Each layer in the order of the mean place of its neighbours in the layer before it, down and up again.
function untangled(layers, edges) {
  const neighbours = new Map();
  for (const [from, to] of edges) {
    for (const [a, b] of [
      [from, to],
      [to, from],
    ]) {
      if (!neighbours.has(a)) neighbours.set(a, []);
      neighbours.get(a).push(b);
    }
  }
  const sweep = (order) => {
    let known = new Map();
    for (const layer of order) {
      const mean = (item, i) => {
        const places = (neighbours.get(item) || [])
          .filter((other) => known.has(other))
          .map((other) => known.get(other));
        return places.length ? sumOf(places, (x) => x) / places.length : i;
      };
      const keyed = layer.map((item, i) => [mean(item, i), i, item]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      layer.splice(0, layer.length, ...keyed.map(([, , item]) => item));
      known = new Map([...known, ...layer.map((item, i) => [item, i - layer.length / 2])]);
    }
  };
  for (let i = 0; i < 4; i += 1) {
    sweep(layers);
    sweep([...layers].reverse());
  }
  return layers;
}

class Drawing {
  constructor() {
    this.element = el('div', { class: 'drawing' });
    this.zoom = { x: 0, y: 0, scale: 1 };
  }

  show(state, center, radius, marks) {
    if (center === null || !state.version.has(center)) {
      const text =
        center === null
          ? 'Select a node in any list, or search for one (press /), to draw the graph around it.'
          : 'The selected node is not in the graph at this point.';
      this.element.replaceChildren(el('p', { class: 'hint' }, text));
      return;
    }
    const { layers, edges } = neighbourhood(state, center, radius);
    const spot = new Map();
    layers.forEach((layer, row) =>
      layer.forEach((item, i) =>
        spot.set(item, [(i - (layer.length - 1) / 2) * (CARD.width + CARD.gapX), row * (CARD.height + CARD.gapY)]),
      ),
    );
    const group = svg('g', {});
    for (const [from, to, name] of edges) group.append(this.edge(spot.get(from), spot.get(to), name, from, to, center));
    for (const [item, at] of spot) group.append(this.card(state, item, at, center, marks));
    const canvas = svg('svg', { role: 'img', 'aria-label': 'The graph around the selected node' }, group);
    this.element.replaceChildren(canvas);
    const [x, y] = spot.get(center);
    const box = this.element.getBoundingClientRect();
    this.zoom = { x: box.width / 2 - x, y: box.height / 2 - y - CARD.height / 2, scale: 1 };
    this.moves(canvas, group);
  }

  edge([x1, y1], [x2, y2], name, from, to, center) {
    const top = y1 + CARD.height;
    const bend = Math.max(16, (y2 - top) / 2);
    const strong = from === center || to === center ? ' strong' : '';
    const line = svg('path', {
      class: `edge${strong}`,
      d: `M${x1} ${top}C${x1} ${top + bend} ${x2} ${y2 - bend} ${x2} ${y2}`,
    });
    line.append(svg('title', {}, name));
    return line;
  }

  card(state, item, [x, y], center, marks) {
    const isValue = typeof item === 'string';
    const node = isValue ? null : state.node(item);
    const first = isValue ? item.slice(6) : format.op(node.op);
    const source = isValue ? app.model.sources.get(first) : null;
    const second = isValue ? (source ? source.type : '') : node.name;
    const cut = (text, most) => (text.length > most ? `…${text.slice(1 - most)}` : text);
    const mark = isValue ? 'value' : marks.get(item) || '';
    const card = svg(
      'g',
      {
        class: `node ${mark} ${item === center ? 'selected' : ''}`,
        transform: `translate(${x - CARD.width / 2} ${y})`,
        click: () => {
          if (!isValue) app.select(item);
        },
      },
      svg('rect', { width: CARD.width, height: CARD.height, rx: 7 }),
    );
    if (node) {
      card.append(
        svg('rect', {
          x: 0,
          y: 8,
          width: 3,
          height: CARD.height - 16,
          style: `fill: var(--${node.phase}); stroke: none`,
        }),
      );
    }
    card.append(
      svg('text', { x: 12, y: 17 }, cut(first, 23)),
      svg('text', { class: 'second', x: 12, y: 31 }, cut(second, 27)),
    );
    card.append(svg('title', {}, `${first}\n${second}`));
    return card;
  }

  moves(canvas, group) {
    const apply = () =>
      group.setAttribute('transform', `translate(${this.zoom.x} ${this.zoom.y}) scale(${this.zoom.scale})`);
    canvas.addEventListener(
      'wheel',
      (event) => {
        event.preventDefault();
        const box = canvas.getBoundingClientRect();
        const scale = Math.min(3, Math.max(0.15, this.zoom.scale * Math.exp(-event.deltaY * 0.0015)));
        const ratio = scale / this.zoom.scale;
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        this.zoom = { x: x - (x - this.zoom.x) * ratio, y: y - (y - this.zoom.y) * ratio, scale };
        apply();
      },
      { passive: false },
    );
    canvas.addEventListener('pointerdown', (down) => {
      const start = { ...this.zoom };
      const move = (event) => {
        this.zoom.x = start.x + event.clientX - down.clientX;
        this.zoom.y = start.y + event.clientY - down.clientY;
        apply();
      };
      const up = () => {
        removeEventListener('pointermove', move);
        removeEventListener('pointerup', up);
      };
      addEventListener('pointermove', move);
      addEventListener('pointerup', up);
    });
    apply();
  }
}
