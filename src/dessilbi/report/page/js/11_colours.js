// Colours come from the style sheet, so that light, dark and print agree with the page.

const colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const runs = Array.from({ length: 7 }, (_, i) => `run-${i}`);
  for (const name of ["paper", "ink", "muted", "grid", "inside", "outside", "empty", "zero", "font", ...runs]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  colours.dark = style.getPropertyValue("--dark").trim() === "1";
}

// Viridis and cividis at a few places, between which colours are mixed: even steps of lightness,
// the same to readers who see fewer colours.
const VIRIDIS = ["#fde725", "#90d743", "#35b779", "#21918c", "#31688e", "#443983", "#440154"];
const CIVIDIS = ["#00204d", "#213d6b", "#555b6c", "#7b7a77", "#a59c74", "#d3c064", "#ffe945"];
const PURPLE_ORANGE = ["#6a3d9a", "#b39bc8", null, "#f0b070", "#c55a00"]; // null: the zero colour

function parts(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

function ramp(hexes) {
  const stops = hexes.map((hex) => parts(hex || colours.zero));
  return (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const i = Math.min(Math.floor(at), stops.length - 2);
    return mix(stops[i], stops[i + 1], at - i);
  };
}

const mix = (from, to, share) => from.map((a, k) => Math.round(a + (to[k] - a) * share));
const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

// The map of a net, from yellow to violet, would drown its last entries in a dark page.
const entryRamp = () => ramp(colours.dark ? VIRIDIS.slice(0, 6) : VIRIDIS);
