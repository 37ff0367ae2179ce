/* What Sphinx and the theme leave unclear to a screen reader. */

// A button's name says what is seen on it, the keys too: its own words do, without a label beside them.
for (const button of document.querySelectorAll(".search-button-field")) {
  button.removeAttribute("aria-label");
}

// The entries of a list of literature are the items of a list.
for (const entry of document.querySelectorAll(".citation-list > .citation")) {
  entry.setAttribute("role", "listitem");
}

// What unfolds a part of the contents says which.
for (const toggle of document.querySelectorAll("summary:has(.toctree-toggle)")) {
  const part = toggle.closest("li").querySelector("a").textContent.trim();
  toggle.setAttribute("aria-label", `Pages of "${part}"`);
}

// What unfolds a cell says so in its own words.
for (const summary of document.querySelectorAll("details.hide > summary")) {
  summary.removeAttribute("aria-label");
}

// What is too wide for a telephone scrolls by the keyboard too.
for (const output of document.querySelectorAll("div.cell_output")) {
  if (getComputedStyle(output).overflowX === "auto") {
    output.tabIndex = 0;
  }
}
for (const table of document.querySelectorAll(".pst-scrollable-table-container")) {
  table.tabIndex = 0;
}
