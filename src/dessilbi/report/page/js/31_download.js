// Panels as files.

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
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
  const canvas = document.createElement("canvas");
  canvas.width = panel.width * scale;
  canvas.height = (panel.height + top) * scale;
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  ctx.fillStyle = colours.paper;
  ctx.fillRect(0, 0, panel.width, panel.height + top);
  ctx.fillStyle = colours.ink;
  ctx.font = `600 15px ${colours.font}`;
  ctx.fillText(panel.title, 8, 22);
  ctx.translate(0, top);
  panel.paint(ctx, "base");
  panel.paint(ctx, "overlay");
  canvas.toBlob((blob) => save(blob, `${name}.png`));
}
