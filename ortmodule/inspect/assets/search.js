// The search over all nodes of all graphs of a session, by operator, name and value, and over inputs and constants,
// which lead to who reads them first.

const search = {
  at: 0,
  hits: [],

  index(model) {
    this.entries = [];
    for (const [id, node] of model.nodes) {
      const version = model.last(id);
      const text = `${version.op} ${version.name} ${version.outputs.map(([name]) => name).join(' ')}`.toLowerCase();
      this.entries.push({ id, text, version, gone: node.died !== null });
    }
    for (const source of model.sources.values()) {
      const [reader] = model.final.readersOf(source.name);
      if (reader === undefined) continue;
      const op = source.constant ? 'constant' : 'input';
      const version = { op, name: source.name, phase: model.final.node(reader).phase };
      this.entries.push({ id: reader, text: `${op} ${source.name}`.toLowerCase(), version, gone: false });
    }
    // What is in the graph that runs comes first.
    this.entries.sort((a, b) => Number(a.gone) - Number(b.gone));
  },

  find(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    return this.entries.filter((entry) => words.every((word) => entry.text.includes(word)));
  },

  update() {
    this.hits = this.find($('query').value);
    this.at = 0;
    this.draw();
  },

  draw() {
    const box = $('hits');
    const query = $('query').value.trim();
    $('query').setAttribute('aria-expanded', String(Boolean(query)));
    box.hidden = !query;
    if (!query) return;
    const most = 60;
    const rows = this.hits.slice(0, most).map((entry, place) =>
      el(
        'div',
        {
          class: 'hit',
          role: 'option',
          'aria-selected': String(place === this.at),
          pointerdown: (event) => {
            event.preventDefault();
            this.choose(place);
          },
        },
        el('span', { class: 'op' }, halfMark(entry.version.phase), format.op(entry.version.op)),
        pathOf(entry.version.name),
        entry.gone ? el('span', { class: 'chip gone' }, 'gone') : '',
      ),
    );
    const rest = this.hits.length - most;
    if (rest > 0)
      rows.push(el('div', { class: 'more' }, `and ${format.count(rest)} more; add a word to narrow them down`));
    if (!rows.length)
      rows.push(el('div', { class: 'more' }, 'No node has all these words in its operator, name or values.'));
    box.replaceChildren(...rows);
    const chosen = box.querySelector('[aria-selected="true"]');
    if (chosen) chosen.scrollIntoView({ block: 'nearest' });
  },

  choose(place) {
    const entry = this.hits[place];
    if (!entry) return;
    this.close();
    app.found(entry.id);
  },

  close() {
    $('query').value = '';
    $('query').blur();
    this.draw();
  },

  listen() {
    $('query').addEventListener('input', () => this.update());
    $('query').addEventListener('blur', () => {
      $('hits').hidden = true;
    });
    $('query').addEventListener('focus', () => this.draw());
    $('query').addEventListener('keydown', (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        this.at = Math.min(Math.min(this.hits.length, 60) - 1, Math.max(0, this.at + step));
        this.draw();
      } else if (event.key === 'Enter') {
        this.choose(this.at);
      } else if (event.key === 'Escape') {
        event.stopPropagation();
        this.close();
      }
    });
  },
};
