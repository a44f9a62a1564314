// The frame: unpacks the records, turns between sessions and views, and keeps what is selected and the address in step.

const VIEWS = { overview: 'Overview', graph: 'Graph', plan: 'Plan', memory: 'Memory', profile: 'Profile' };

const app = {
  node: null, // id of the selected node
  view: 'overview',

  async start() {
    const packed = Uint8Array.from(atob($('data').textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
    this.records = JSON.parse(await new Response(stream).text());
    this.models = new Map();
    this.views = {
      overview: new Overview(),
      graph: new GraphView(),
      plan: new PlanView(),
      memory: new MemoryView(),
      profile: new ProfileView(),
    };
    $('session').replaceChildren(
      ...this.records.map((record, place) => el('option', { value: place }, labelOf(record, this.records))),
    );
    $('session').hidden = this.records.length < 2;
    $('session').addEventListener('change', (event) => this.turnTo(Number(event.target.value)));
    search.listen();
    addEventListener('keydown', (event) => this.key(event));
    addEventListener('popstate', () => this.readAddress());
    this.readAddress();
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  },

  // The session that ran most, unless the address names one.
  busiest() {
    const seconds = this.records.map((record) => sumOf(record.times, (row) => row[4]));
    return seconds.indexOf(Math.max(...seconds));
  },

  readAddress() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const session = asked.has('session') ? Number(asked.get('session')) : this.busiest();
    this.load(session in this.records ? session : 0);
    const node = asked.has('node') ? Number(asked.get('node')) : null;
    this.node = this.model.nodes.has(node) ? node : null;
    const view = asked.get('view') in VIEWS ? asked.get('view') : 'overview';
    const options = {};
    if (asked.has('event')) options.event = Number(asked.get('event'));
    if (asked.has('mode')) options.mode = asked.get('mode');
    this.show(view, options);
  },

  writeAddress(pushes) {
    const { session, view, node } = this;
    const state = this.views[view].state ? this.views[view].state() : {};
    const parts = {
      ...(this.records.length > 1 ? { session } : {}),
      view,
      ...(node === null ? {} : { node }),
      ...state,
    };
    const hash = `#${new URLSearchParams(parts)}`;
    if (hash === location.hash) return;
    if (pushes) history.pushState(null, '', hash);
    else history.replaceState(null, '', hash);
  },

  load(session) {
    this.session = session;
    $('session').value = session;
    if (!this.models.has(session)) this.models.set(session, new Model(this.records[session]));
    this.model = this.models.get(session);
    search.index(this.model);
  },

  turnTo(session) {
    // The node of the same value, where the other session has it.
    const version = this.node === null ? null : this.model.last(this.node);
    this.load(session);
    const same = version ? this.model.final.producer(version.outputs[0]?.[0]) : undefined;
    this.node = same === undefined ? null : same;
    this.show(this.view);
    this.writeAddress(true);
  },

  show(view, options = {}) {
    this.view = view;
    $('tabs').replaceChildren(
      ...Object.entries(VIEWS).map(([name, label], place) =>
        el(
          'button',
          {
            role: 'tab',
            'aria-selected': String(name === view),
            title: `${label} (${place + 1})`,
            click: () => this.go(name),
          },
          label,
        ),
      ),
    );
    details.draw();
    // Lists and charts look at their size: the view has to be there before they are filled.
    const element = this.views[view].element;
    if ($('view').firstChild !== element) $('view').replaceChildren(element);
    this.views[view].enter(this.model, options);
    if (view === 'graph' || view === 'profile') this.views[view].select(this.node);
  },

  go(view, options = {}) {
    tip.hide();
    this.show(view, options);
    this.writeAddress(true);
  },

  select(id) {
    if (id === this.node) return;
    this.node = id;
    details.draw();
    this.views[this.view].select(id);
    this.writeAddress(false);
  },

  // From the search: shown where it can be seen.
  found(id) {
    const node = this.model.nodes.get(id);
    const there = { plan: node.step, memory: node.blocks[0], profile: node.time }[this.view];
    this.node = id;
    if (there) this.show(this.view);
    else if (node.died === null) this.show('graph', { event: this.model.events.length - 1, mode: 'after' });
    else this.show('graph', { event: node.died, mode: 'diff' });
    this.writeAddress(true);
  },

  draw(id) {
    const node = this.model.nodes.get(id);
    const graph = this.views.graph;
    const last = node.died === null ? this.model.events.length - 1 : node.died - 1;
    const there = this.view === 'graph' && graph.event !== null && this.model.states.at(graph.event).version.has(id);
    this.go('graph', { event: there ? graph.event : last, mode: 'drawing' });
  },

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches('input, select, textarea');
    if (event.key === 'Escape') {
      if (typing) event.target.blur();
      else this.select(null);
    } else if (typing) {
      return;
    } else if (event.key === '/') {
      event.preventDefault();
      $('query').focus();
    } else if (/^[1-5]$/.test(event.key)) {
      this.go(Object.keys(VIEWS)[Number(event.key) - 1]);
    } else if (event.key === '[' || event.key === ']') {
      if (this.view !== 'graph') this.show('graph');
      this.views.graph.turn(event.key === ']' ? 1 : -1);
    }
  },
};

function labelOf(record, all) {
  const label = `${record.title}, ${record.mode}`;
  const same = all.filter((other) => other.title === record.title && other.mode === record.mode);
  return same.length > 1 ? `${label} (${same.indexOf(record) + 1})` : label;
}

app.start().catch((error) => {
  $('view').replaceChildren(el('p', { class: 'hint' }, `This page could not be drawn: ${error.message}`));
  throw error;
});
