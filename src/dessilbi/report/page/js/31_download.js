// Panels as files.

function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function cell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const text = String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function saveTable(rows, name) {
  const text = rows.map((row) => row.map(cell).join(",")).join("\n");
  save(new Blob([`${text}\n`], { type: "text/csv" }), `${name}.csv`);
}

// The panel as it is seen, with its title, at twice the resolution.
function savePicture(panel, name) {
  const scale = 2;
  const top = 34;
  const canvas = element("canvas", { width: panel.width * scale, height: (panel.height + top) * scale });
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  ctx.fillStyle = colours.paper;
  ctx.fillRect(0, 0, panel.width, panel.height + top);
  write(ctx, panel.title, 8, 22, { base: "alphabetic", colour: colours.ink, font: "600 15px" });
  ctx.translate(0, top);
  panel.paint(ctx, "base");
  panel.paint(ctx, "overlay");
  canvas.toBlob((blob) => save(blob, `${name}.png`));
}
