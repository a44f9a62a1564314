// What every part uses: making elements, writing numbers, the tip under the pointer.

const $ = (id) => document.getElementById(id);

// An element; attributes by name, functions as listeners, children as nodes or texts.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (name === 'class') node.className = value;
    else if (name === 'style') node.style.cssText = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter(Boolean));
  return node;
}

const format = {
  number(value, digits = 3) {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    if (value === 0) return '0';
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    return value.toFixed(Math.min(places, 6));
  },
  count(value) {
    return value === null || value === undefined ? '–' : value.toLocaleString('en-US');
  },
  scaled(value, base, units) {
    if (value === null || value === undefined) return '–';
    let unit = 0;
    while (Math.abs(value) >= 999.5 * (base / 1000) && unit < units.length - 1) {
      value /= base;
      unit += 1;
    }
    return `${unit === 0 ? Math.round(value) : format.number(value)} ${units[unit]}`.trim();
  },
  bytes: (value) => format.scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']),
  flops: (value) => format.scaled(value, 1000, ['flop', 'kflop', 'Mflop', 'Gflop', 'Tflop']),
  seconds(value) {
    if (value === null || value === undefined) return '–';
    if (value === 0) return '0';
    if (value < 999.5e-6) return `${format.number(1e6 * value)} µs`;
    return value < 0.9995 ? `${format.number(1e3 * value)} ms` : `${format.number(value)} s`;
  },
  share: (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : '–'),
  // Without the domain that nearly every fused operator has.
  op: (op) => op.replace(/^ai\.ortmodule::/, ''),
};

// "bert.encoder.layer.0/add_1": the module is dim, the node's own name is not; where both are too long, the module
// loses its beginning. It is set from right to left for that, between marks that keep its slashes in their places.
function pathOf(name) {
  const cut = name.lastIndexOf('/') + 1;
  const module = cut ? el('span', {}, `\u200e${name.slice(0, cut)}\u200e`) : null;
  return el('span', { class: 'path', title: name }, module, el('b', {}, name.slice(cut)));
}

// The module that a node belongs to; a gradient's is that of what it is the gradient of.
function moduleOf(name) {
  const parts = name.split('/').slice(0, -1);
  if (parts.length && parts[parts.length - 1].endsWith('_grad')) parts.pop();
  return parts.join('/');
}

const halfMark = (phase) => el('i', { class: `half ${phase}`, title: phase });

function sumOf(items, value) {
  let sum = 0;
  for (const item of items) sum += value(item) || 0;
  return sum;
}

function groupsOf(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (groups.has(name)) groups.get(name).push(item);
    else groups.set(name, [item]);
  }
  return groups;
}

const tip = {
  show(text, event) {
    const box = $('tip');
    box.textContent = text;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 12 - width : event.clientX + 14;
    const top = event.clientY + 16 + height > innerHeight ? event.clientY - 10 - height : event.clientY + 16;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    $('tip').hidden = true;
  },
};

// A row of buttons of which one is pressed; pairs of value and label, with a third true where one cannot be chosen.
function segments(choices, chosen, choose) {
  return el(
    'div',
    { class: 'segments' },
    choices.map(([value, label, off]) =>
      el(
        'button',
        {
          'aria-pressed': String(value === chosen),
          disabled: off,
          click: () => choose(value),
        },
        label,
      ),
    ),
  );
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
