// A record with its parts joined by node: versions of a node, its step, its storages, its time.

class Model {
  constructor(record) {
    this.record = record;
    this.history = record.history || historyOfPlan(record.halves);
    this.versions = this.history.versions;
    this.events = this.history.events;
    this.states = new States(this);
    this.sources = new Map(this.history.sources.map((source) => [source.name, source]));
    this.nodes = new Map();
    this.readVersions();
    this.final = this.states.at(this.events.length - 1);
    this.readSteps();
    this.readMemory();
    this.readTimes();
  }

  get hasHistory() {
    return Boolean(this.record.history);
  }

  readVersions() {
    const born = (version) => {
      const id = this.versions[version].node;
      if (!this.nodes.has(id)) {
        this.nodes.set(id, {
          id,
          versions: [],
          events: [],
          died: null,
          step: null,
          blocks: [],
          time: null,
        });
      }
      const node = this.nodes.get(id);
      node.versions.push(version);
      return node;
    };
    this.events.forEach((event, place) => {
      for (const version of event.removed) {
        const node = this.nodes.get(this.versions[version].node);
        node.died = place;
        node.events.push([place, 'removed']);
      }
      for (const [, version] of event.replaced) born(version).events.push([place, 'changed']);
      for (const [version] of event.added) born(version).events.push([place, 'added']);
    });
  }

  // Of a value as text, as the last graph that had it knew it.
  typeOf(name) {
    if (!this.types) {
      this.types = new Map(this.history.sources.map((source) => [source.name, source.type]));
      for (const version of this.versions) for (const [value, type] of version.outputs) this.types.set(value, type);
    }
    return this.types.get(name) || '';
  }

  last(id) {
    const node = this.nodes.get(id);
    return this.versions[node.versions[node.versions.length - 1]];
  }

  readSteps() {
    this.steps = [];
    for (const half of this.record.halves) {
      for (const step of half.steps) {
        const made = step.outputs.find((value) => value.name);
        const id = made ? this.final.producer(made.name) : undefined;
        const joined = {
          ...step,
          half: half.name,
          place: this.steps.length,
          id: id === undefined ? null : id,
          moved: step.bytes,
        };
        this.steps.push(joined);
        if (id !== undefined) this.nodes.get(id).step = joined;
      }
    }
    this.halfAt = this.record.halves[0].steps.length;
  }

  readMemory() {
    this.blocks = this.record.memory.blocks.map((block, place) => {
      const id = this.final.producer(block.value);
      const joined = { ...block, place, id: id === undefined ? null : id };
      if (id !== undefined) this.nodes.get(id).blocks.push(joined);
      return joined;
    });
    const outputs = new Set(this.final.outputs);
    for (const block of this.blocks) {
      block.kind = block.saved ? 'saved' : outputs.has(block.value) ? 'output' : block.half;
    }
  }

  readTimes() {
    this.times = this.record.times.map(([phase, op, name, calls, seconds, bytes, flops, value]) => {
      const id = this.final.producer(value);
      const row = {
        phase,
        op,
        name,
        calls,
        seconds,
        bytes,
        flops,
        value,
        id: id === undefined ? null : id,
      };
      if (id !== undefined) this.nodes.get(id).time = row;
      return row;
    });
    this.seconds = sumOf(this.times, (row) => row.seconds);
    // Passes of the whole model, of which each node has its part.
    this.runs = this.times.reduce((most, row) => Math.max(most, row.calls), 0);
  }
}

// Where the passes were not followed, the steps of the plan are the only graph.
function historyOfPlan(halves) {
  const versions = halves.flatMap((half) =>
    half.steps.map((step) => ({
      node: 0,
      op: step.op,
      name: step.node,
      provider: step.provider,
      phase: half.name,
      inputs: step.inputs.map((value) => value.name),
      outputs: step.outputs.map((value) => [value.name, value.type]),
      attributes: [],
      metadata: {},
    })),
  );
  versions.forEach((version, place) => {
    version.node = place;
  });
  const event = {
    stage: 'planned',
    pass: '',
    round: 0,
    seconds: 0,
    modifications: 0,
    nodes: versions.length,
    removed: [],
    replaced: [],
    added: versions.map((_, place) => [place, place - 1]),
    order: [],
    outputs: [],
  };
  return { versions, events: [event], sources: [] };
}
