// Explorers on a page without a kernel: sliders pick rows of the numbers inside the page, lines are drawn
// through them. Everything but the lines is HTML already; see page.py beside this folder.
{
  const MARKERS_UP_TO = 20; // points of a line, as in explore_figure
  const MARGIN = { top: 8, right: 12, bottom: 24 };

  function element(name, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  }

  function format(value, { digits }) {
    if (value === null) return "–";
    const size = Math.abs(value);
    const plain = value === 0 || (size >= 1e-3 && size < 1e7);
    const text = plain
      ? value.toLocaleString("en", { maximumSignificantDigits: Number.isInteger(value) ? 12 : digits })
      : Number(value.toPrecision(digits)).toExponential().replace("e+", "e");
    return text.replaceAll("-", "−");
  }

  // Round numbers between low and high, about `count` of them: steps of 1, 2 or 5 times a power of ten. They
  // are those of a logarithmic axis as well where it is so short that it hardly bends.
  function ticks({ limits: [low, high], log }, count, whole) {
    const logarithmic = log ? logTicks(low, high, count) : [];
    if (logarithmic.length > 1) return logarithmic;
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    return multiples(low, high, whole ? Math.max(1, Math.round(step)) : step);
  }

  function multiples(low, high, step) {
    const found = [];
    const first = Math.ceil(low / step); // which may be so large that first + 1 === first + 2
    for (let n = 0; (first + n) * step <= high && n < 1000; n++) {
      found.push(Number(((first + n) * step).toPrecision(14)));
    }
    return found;
  }

  // Powers of ten; where there are few of them, 2 and 5 times a power as well.
  function logTicks(low, high, count) {
    const [first, last] = [Math.log10(low), Math.log10(high)];
    if (last - first > 2) {
      const step = Math.ceil((last - first) / count);
      return multiples(first, last, step).map((power) => Number(`1e${power}`));
    }
    const powers = multiples(Math.floor(first), last, 1);
    const all = powers.flatMap((power) => [1, 2, 5].map((n) => Number(`${n}e${power}`)));
    return all.filter((value) => value >= low && value <= high);
  }

  // Where a value stands between two ends, in pixels.
  function scale({ limits, log }, from, to) {
    const bend = log ? Math.log10 : (value) => value;
    const [low, high] = limits.map(bend);
    return (value) => from + ((bend(value) - low) / (high - low)) * (to - from);
  }

  // Runs of rows that have a number in every one of the columns: a gap in the numbers is a gap in the line.
  function stretches(rows, columns) {
    const found = [[]];
    for (const row of rows) {
      if (columns.every((column) => column[row] !== null)) found.at(-1).push(row);
      else found.push([]);
    }
    return found.filter((stretch) => stretch.length);
  }

  function begin(box) {
    const data = JSON.parse(box.querySelector("script").textContent);
    const columns = data.columns;
    const inputs = [...box.querySelectorAll("input, select")];
    const plot = box.querySelector(".plot");
    const details = box.querySelector("details");
    const svg = element("svg", { role: "img" });
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    plot.replaceChildren(svg, tip);
    const put = (name, attributes, text) => svg.appendChild(element(name, attributes, text));
    const whole = (column) => column.every((value) => value === null || Number.isInteger(value));
    let lines = []; // those that are seen, each with the numbers of its rows
    let points = []; // what is drawn, in pixels

    const setting = () =>
      data.sliders.map((slider, i) => `${slider.label} = ${slider.stops[inputs[i].value]}`).join(", ");

    function pick() {
      const chosen = inputs.map((input) => Number(input.value));
      const seen = (row) => chosen.every((stop, i) => columns.sliders[i][row] === stop);
      const rows = [...columns.x.keys()].filter(seen);
      const those = (code) => rows.filter((row) => columns.line[row] === code);
      lines = data.lines.map((line, code) => ({ ...line, rows: those(code) })).filter((line) => line.rows.length);
      inputs.forEach((input, i) => {
        const stop = data.sliders[i].stops[chosen[i]];
        if (input.type !== "range") return;
        input.setAttribute("aria-valuetext", stop);
        input.parentElement.querySelector("strong").textContent = stop;
      });
      const ends = lines.map(({ name, rows }) =>
        `${name} from ${format(columns.y[rows[0]], data.y)} to ${format(columns.y[rows.at(-1)], data.y)}`.trim());
      svg.setAttribute("aria-label", `${data.title}. ${setting()}. ${data.y.label}: ${ends.join("; ")}.`);
      draw();
      if (details.open) tabulate();
    }

    // Under the width that the page gives now: text keeps its size on a narrow screen.
    function draw() {
      const [width, height] = [plot.clientWidth, plot.clientHeight];
      tip.hidden = true;
      if (!width) return; // inside something folded: drawn when it opens
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const bottom = height - MARGIN.bottom;
      const y = scale(data.y, bottom, MARGIN.top);
      const levels = ticks(data.y, height / 40, whole(columns.y)).map((value) =>
        put("text", { y: y(value), dy: "0.35em", "text-anchor": "end" }, format(value, data.y)));
      const left = Math.ceil(Math.max(0, ...levels.map((label) => label.getBBox().width))) + 8;
      const right = width - MARGIN.right;
      for (const label of levels) {
        const at = label.getAttribute("y");
        label.setAttribute("x", left - 8);
        put("line", { class: "grid", x1: left, x2: right, y1: at, y2: at });
      }
      put("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom });
      const x = scale(data.x, left, right);
      for (const value of ticks(data.x, width / (20 + 8 * data.x.digits), whole(columns.x))) {
        put("line", { class: "base", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 });
        put("text", { x: x(value), y: height - 4, "text-anchor": "middle" }, format(value, data.x));
      }
      const path = (rows, column) =>
        rows.map((row) => `${x(columns.x[row]).toFixed(1)},${y(column[row]).toFixed(1)}`);
      points = [];
      for (const { colour, rows: all } of columns.low ? lines : []) {
        for (const rows of stretches(all, [columns.low, columns.high])) {
          const around = [...path(rows, columns.high), ...path([...rows].reverse(), columns.low)];
          put("polygon", { class: "band", style: `--hue: ${colour}`, points: around.join(" ") });
        }
      }
      for (const line of lines) {
        const style = `--hue: ${line.colour}`;
        for (const rows of stretches(line.rows, [columns.y])) {
          const through = path(rows, columns.y).join(" ");
          put("polyline", { class: "line", style, "stroke-dasharray": line.dash, points: through });
          for (const row of rows) {
            const [cx, cy] = [x(columns.x[row]), y(columns.y[row])];
            points.push({ line, row, cx, cy });
            if (line.rows.length > MARKERS_UP_TO) continue;
            put("circle", { class: "marker", style, cx, cy, r: 3.2 });
          }
        }
      }
    }

    function tabulate() {
      const parts = Object.entries({ x: data.x.label, y: data.y.label, ...data.band });
      const table = document.createElement("table");
      table.createCaption().textContent = setting();
      const head = table.createTHead().insertRow();
      const names = [...(data.colour === null ? [] : [data.colour]), ...parts.map(([, label]) => label)];
      for (const name of names) {
        const cell = document.createElement("th");
        cell.scope = "col";
        cell.textContent = name;
        head.append(cell);
      }
      const body = table.createTBody();
      for (const { name, rows } of lines) {
        for (const row of rows) {
          const cells = body.insertRow();
          if (data.colour !== null) {
            const cell = document.createElement("th");
            cell.scope = "row";
            cell.textContent = name;
            cells.append(cell);
          }
          for (const [part] of parts) cells.insertCell().textContent = format(columns[part][row], data[part] ?? data.y);
        }
      }
      const scroll = details.querySelector(".scroll");
      scroll.replaceChildren(table);
      scroll.classList.toggle("more", scroll.scrollHeight > scroll.clientHeight);
    }

    // The point under the mouse, or the nearest one within reach.
    function point(event) {
      const frame = plot.getBoundingClientRect();
      const [left, top] = [event.clientX - frame.left, event.clientY - frame.top];
      const far = ({ cx, cy }) => Math.hypot(cx - left, cy - top);
      const nearest = points.reduce((best, one) => (best && far(best) <= far(one) ? best : one), null);
      tip.hidden = !nearest || far(nearest) > 40;
      svg.querySelector(".near")?.remove();
      if (tip.hidden) return;
      const { line, row, cx, cy } = nearest;
      const y = (value) => format(value, data.y);
      const around = columns.low ? `, ${y(columns.low[row])} to ${y(columns.high[row])}` : "";
      tip.textContent = `${line.name} (${format(columns.x[row], data.x)}, ${y(columns.y[row])}${around})`.trim();
      put("circle", { class: "near", style: `--hue: ${line.colour}`, cx, cy, r: 6 });
      tip.style.left = `${Math.min(cx + 10, frame.width - tip.offsetWidth)}px`;
      tip.style.top = `${Math.max(0, cy - tip.offsetHeight - 10)}px`;
    }

    for (const input of inputs) {
      input.disabled = false;
      input.addEventListener("input", pick);
    }
    details.addEventListener("toggle", () => details.open && tabulate());
    // A finger that is held still does not move, and what it asked for stays when it is lifted.
    for (const kind of ["pointerdown", "pointermove"]) plot.addEventListener(kind, point);
    plot.addEventListener("pointerleave", ({ pointerType }) => pointerType === "touch" || draw());
    pick();
    new ResizeObserver(draw).observe(plot);
  }

  // A notebook carries this script once for each explorer.
  for (const box of document.querySelectorAll(".floral-explorer:not(.begun)")) {
    box.classList.add("begun");
    begin(box);
  }
}
