// What panels share: words, numbers as words, axes, pictures of filters, the tooltip.
//
// A plot is an SVG from 0 to 1000 on both axes, stretched over its element, under words that are
// placed in per cent: the browser fits it to any width, and the style sheet colours it.

const SYMBOLS = { W: "W", Gamma: "Γ", V: "V" };

function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

function short(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [from, unit, letter] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (size >= from) return `${+(value / unit).toPrecision(3)}${letter}`;
  }
  return size !== 0 && size < 1e-3 ? value.toExponential(1) : String(+value.toPrecision(digits));
}

const percent = (share, digits = 1) => (share === null ? "–" : `${(100 * share).toFixed(digits)}\u00a0%`);

// ---------------------------------------------------------------- axes

// From a number to its share of the axis, and back.
function scale(low, high, log = false) {
  const f = log ? (value) => Math.log10(Math.max(value, low * 1e-3)) : (value) => value;
  const [from, length] = [f(low), f(high) - f(low) || 1];
  const share = (value) => (f(value) - from) / length;
  share.invert = (at) => (log ? 10 ** (from + at * length) : from + at * length);
  share.ticks = log && high / low > 10 ? logTicks(low, high) : ticks(low, high);
  return share;
}

function ticks(low, high) {
  const rough = (high - low) / 7 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const count = Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1;
  return Array.from({ length: count }, (_, i) => +((Math.ceil(low / step - 1e-9) + i) * step).toPrecision(12));
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const found = [];
  for (let e = Math.floor(Math.log10(low)); 10 ** e <= high; e++) {
    found.push(...(decades > 4 ? [1] : decades > 2 ? [1, 3] : [1, 2, 5]).map((m) => +(m * 10 ** e).toPrecision(6)));
  }
  return found.filter((tick) => tick >= low && tick <= high);
}

// All curves against epochs share one axis, whatever was recorded when.
function epochScale(epochs) {
  const found = scale(epochs[0], Math.max(epochs.at(-1), epochs[0] + 1));
  found.ticks = found.ticks.filter(Number.isInteger);
  return found;
}

// Least and largest finite number, of those above zero for a logarithmic axis.
function extent(lists, positive) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (const value of list) {
      if (value === null || !Number.isFinite(value) || (positive && value <= 0)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? [low, high] : positive ? [0.1, 1] : [0, 1];
}

const at = (share) => (1000 * share).toFixed(1);
const words = (className, text, style = "") => element("span", { className, style }, String(text));
const xTicks = (x) => x.ticks.map((tick) => words("tick-x", short(tick), `left:${100 * x(tick)}%`));

function makePlot(x, y, xLabel, yLabel, markup) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 1000 1000");
  svg.setAttribute("preserveAspectRatio", "none");
  const grid = y.ticks.map((tick) => `M0 ${at(1 - y(tick))}H1000`).join("");
  svg.innerHTML = `<path class="grid" d="${grid}"/>${markup}<g></g>`;
  const yTicks = y.ticks.map((tick) => words("tick-y", short(tick), `bottom:${100 * y(tick)}%`));
  const marks = element("div", { className: "marks" });
  const plot = element("div", { className: "plot" }, svg, ...xTicks(x), ...yTicks, words("label-x", xLabel), words("label-y", yLabel), marks);
  return Object.assign(plot, { x, y, marks, front: svg.lastChild });
}

// A path through the points that are known.
function polyline(xs, ys, { x, y }) {
  const known = (i) => i >= 0 && ys[i] !== null && Number.isFinite(ys[i]);
  return xs.map((value, i) => (known(i) ? `${known(i - 1) ? "L" : "M"}${at(x(value))} ${at(1 - y(ys[i]))}` : "")).join("");
}

// Points are lines of no length with round or square ends: they keep their form on a stretched plot.
const spots = (xs, ys, { x, y }) => xs.map((value, i) => `M${at(x(value))} ${at(1 - y(ys[i]))}h0`).join("");

// Where the slider is; what comes after it is veiled.
function cursor(share) {
  return element("i", { className: "veil", style: `left:${100 * Math.min(Math.max(share, 0), 1)}%` });
}

function dot(share, height, colour) {
  return element("i", { className: "dot", style: `left:${100 * share}%;bottom:${100 * height}%;color:${colour}` });
}

// Where the pointer is on an element: shares from the left and from below, and the element's size.
function pointer(event, target) {
  const box = target.getBoundingClientRect();
  return { x: (event.clientX - box.left) / box.width, y: (box.bottom - event.clientY) / box.height, box };
}

// ---------------------------------------------------------------- pictures of filters

const addresses = new Map();

function address(png) {
  if (!addresses.has(png)) addresses.set(png, URL.createObjectURL(new Blob([bytesOf(png)], { type: "image/png" })));
  return addresses.get(png);
}

// One filter out of the sheet of its layer; null if the sheet is not stored.
function picture(unit, what, size) {
  const found = path().layerOf[unit];
  const sheet = nearestKept()?.sheets[found.index]?.[what];
  if (!sheet) return null;
  const { png, height, width, across } = sheet;
  const share = size / Math.max(height, width);
  const factor = share > 1 ? Math.floor(share) : share; // whole screen pixels for each of ours
  const [w, h, index] = [width * factor, height * factor, unit - found.start];
  const place = `${-(index % across) * w}px ${-Math.floor(index / across) * h}px / ${across * w}px auto`;
  const style = `width:${w}px;height:${h}px;background:url(${address(png)}) ${place}`;
  return element("i", { className: share > 1 ? "picture pixels" : "picture", style });
}

// ---------------------------------------------------------------- the tooltip

const tooltip = element("div", { className: "tooltip", role: "status" });

function showTooltip({ title, lines, unit }, { clientX, clientY }) {
  tooltip.replaceChildren(element("strong", {}, title), element("div", {}, lines.join("\n")));
  if (unit !== undefined && picture(unit, "W", 84)) {
    const figure = (what, name) => element("span", {}, element("small", {}, name), picture(unit, what, 84));
    tooltip.append(figure("W", `W, epoch ${nearestKept().epoch}`), figure("Gamma", "Γ"));
  }
  tooltip.classList.add("on");
  const { offsetWidth, offsetHeight } = tooltip;
  const above = clientY + 16 + offsetHeight > innerHeight - 8;
  tooltip.style.left = `${Math.max(Math.min(clientX + 14, innerWidth - offsetWidth - 8), 8)}px`;
  tooltip.style.top = `${Math.max(above ? clientY - offsetHeight - 12 : clientY + 16, 8)}px`;
}

const hideTooltip = () => tooltip.classList.remove("on");
