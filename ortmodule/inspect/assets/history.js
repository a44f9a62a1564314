// The graph before and after each event, what an event changed, and how its changes are alike.

class State {
  constructor(model, order, version, outputs) {
    this.model = model;
    this.order = order; // ids of nodes
    this.version = version; // id -> its version
    this.outputs = outputs; // names of values
  }

  node(id) {
    const version = this.version.get(id);
    return version === undefined ? undefined : this.model.versions[version];
  }

  index() {
    if (this.producers) return;
    this.producers = new Map();
    this.readers = new Map();
    for (const id of this.order) {
      const node = this.node(id);
      for (const [name] of node.outputs) if (name) this.producers.set(name, id);
      for (const name of new Set(node.inputs)) {
        if (!name) continue;
        if (this.readers.has(name)) this.readers.get(name).push(id);
        else this.readers.set(name, [id]);
      }
    }
  }

  producer(value) {
    this.index();
    return this.producers.get(value);
  }

  readersOf(value) {
    this.index();
    return this.readers.get(value) || [];
  }
}

class States {
  constructor(model) {
    this.model = model;
    this.kept = new Map();
  }

  // After event `place`; -1: before the first.
  at(place) {
    if (this.kept.has(place)) return this.kept.get(place);
    let start = -1;
    for (const known of this.kept.keys()) if (known < place && known > start) start = known;
    const from = this.kept.get(start);
    let state = from || new State(this.model, [], new Map(), []);
    for (let event = start + 1; event <= place; event += 1) state = this.after(state, this.model.events[event]);
    if (this.kept.size > 8) this.kept.delete(this.kept.keys().next().value);
    this.kept.set(place, state);
    return state;
  }

  after(state, event) {
    const { versions } = this.model;
    const version = new Map(state.version);
    for (const gone of event.removed) version.delete(versions[gone].node);
    for (const [, fresh] of event.replaced) version.set(versions[fresh].node, fresh);
    for (const [fresh] of event.added) version.set(versions[fresh].node, fresh);
    const outputs = event.outputs.length ? event.outputs : state.outputs;
    const order = event.order.length ? event.order : this.orderAfter(state, event, version);
    return new State(this.model, order, version, outputs);
  }

  orderAfter(state, event, version) {
    if (!event.added.length) return state.order.filter((id) => version.has(id));
    const behind = groupsOf(event.added, ([, before]) => before);
    const order = [];
    // What was put behind a node stands right behind it, in turn followed by what was put behind that.
    const put = (id) => {
      const waiting = [id];
      while (waiting.length) {
        const next = waiting.pop();
        if (next !== -1) order.push(next);
        const followers = behind.get(next) || [];
        for (const [fresh] of [...followers].reverse()) waiting.push(this.model.versions[fresh].node);
      }
    };
    put(-1);
    const added = new Set(event.added.map(([fresh]) => this.model.versions[fresh].node));
    for (const id of state.order) if (version.has(id) && !added.has(id)) put(id);
    return order;
  }
}

// What differs between two versions of a node, in words.
function differenceOf(before, after) {
  const parts = [];
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  if (before.op !== after.op) parts.push(`was ${format.op(before.op)}`);
  if (!same(before.inputs, after.inputs)) parts.push('inputs');
  if (
    !same(
      before.outputs.map((o) => o[0]),
      after.outputs.map((o) => o[0]),
    )
  )
    parts.push('outputs');
  else if (!same(before.outputs, after.outputs)) parts.push('types');
  if (!same(before.attributes, after.attributes)) parts.push('attributes');
  if (before.name !== after.name) parts.push('name');
  if (before.phase !== after.phase) parts.push('half');
  if (before.provider !== after.provider) parts.push('provider');
  if (!same(before.metadata, after.metadata)) parts.push('notes');
  return parts.join(', ');
}

// Lines of a diff: {sign, id, node, note}; the removed ones stand where they stood.
function diffOf(model, place) {
  const event = model.events[place];
  const before = model.states.at(place - 1);
  const after = model.states.at(place);
  const fresh = new Set(event.added.map(([version]) => model.versions[version].node));
  const replaced = new Map(event.replaced.map(([old, now]) => [model.versions[now].node, old]));
  const gone = new Map();
  let last = -1;
  for (const id of before.order) {
    if (after.version.has(id)) {
      last = id;
    } else if (gone.has(last)) {
      gone.get(last).push(id);
    } else {
      gone.set(last, [id]);
    }
  }
  const lines = [];
  const removed = (behind) => {
    for (const id of gone.get(behind) || []) lines.push({ sign: '-', id, node: before.node(id), note: '' });
  };
  removed(-1);
  for (const id of after.order) {
    const node = after.node(id);
    if (fresh.has(id)) {
      lines.push({ sign: '+', id, node, note: '' });
      continue;
    }
    const old = replaced.get(id);
    const note = old === undefined ? '' : differenceOf(model.versions[old], node);
    lines.push({ sign: old === undefined ? ' ' : '~', id, node, note });
    removed(id);
  }
  return lines;
}

// The changed lines, each with two that are as they were around it, and rules for what is left out.
function withContext(lines, around = 2) {
  const shown = new Set();
  lines.forEach((line, place) => {
    if (line.sign === ' ') return;
    for (let i = Math.max(0, place - around); i <= Math.min(lines.length - 1, place + around); i += 1) shown.add(i);
  });
  const out = [];
  let left = 0;
  lines.forEach((line, place) => {
    if (!shown.has(place)) {
      left += 1;
      return;
    }
    if (left) out.push({ sign: '…', note: `${left} unchanged` });
    left = 0;
    out.push(line);
  });
  if (left) out.push({ sign: '…', note: `${left} unchanged` });
  return out;
}

function operatorsOf(nodes) {
  const counts = [...groupsOf(nodes, (node) => format.op(node.op))].map(([op, all]) => [op, all.length]);
  return counts.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

// Changes that hang together through values that they make, grouped by what they turn into what.
function patternsOf(model, place) {
  const event = model.events[place];
  const parent = new Map();
  const root = (key) => {
    if (!parent.has(key)) parent.set(key, key);
    let top = key;
    while (parent.get(top) !== top) top = parent.get(top);
    while (parent.get(key) !== top) {
      const next = parent.get(key);
      parent.set(key, top);
      key = next;
    }
    return top;
  };
  const join = (a, b) => parent.set(root(a), root(b));
  const members = [
    ...event.removed.map((version) => ['-', model.versions[version]]),
    ...event.added.map(([version]) => ['+', model.versions[version]]),
  ];
  const made = new Set();
  for (const [, node] of members) for (const [name] of node.outputs) if (name) made.add(name);
  members.forEach(([, node], i) => {
    for (const [name] of node.outputs) if (name) join(`#${i}`, name);
    for (const name of node.inputs) if (made.has(name)) join(`#${i}`, name);
  });
  const rewired = [];
  for (const [old, now] of event.replaced) {
    const before = model.versions[old];
    const after = model.versions[now];
    before.inputs.forEach((name, slot) => {
      const other = after.inputs[slot];
      if (other && name !== other && made.has(name) && made.has(other)) join(name, other);
    });
    rewired.push(['~', after, before]);
  }
  const groups = groupsOf(
    members.map((member, i) => [root(`#${i}`), member]),
    ([key]) => key,
  );
  const places = [...groups.values()].map((all) => all.map(([, member]) => member));
  for (const change of rewired) {
    const alone = !event.removed.length && !event.added.length;
    if (alone || change[1].op !== change[2].op || differenceOf(change[2], change[1]) !== 'inputs')
      places.push([change]);
  }
  return groupedPlaces(places);
}

function groupedPlaces(places) {
  const kinds = new Map();
  for (const changes of places) {
    const gone = operatorsOf(changes.filter(([sign]) => sign === '-').map(([, node]) => node));
    const come = operatorsOf(changes.filter(([sign]) => sign === '+').map(([, node]) => node));
    const kept = changes.filter(([sign]) => sign === '~');
    const words = kept.map(([, after, before]) => [format.op(after.op), differenceOf(before, after)]);
    const key = JSON.stringify([gone, come, words]);
    if (!kinds.has(key)) kinds.set(key, { gone, come, words, places: [] });
    kinds.get(key).places.push(changes);
  }
  return [...kinds.values()].sort((a, b) => b.places.length - a.places.length);
}
