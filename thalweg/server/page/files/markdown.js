// A safe subset of Markdown. `parse` makes plain data of text, `nodes` makes DOM of that. Model text becomes text
// nodes alone, so nothing a model writes can be markup, and links lead to http, https and mailto only.

// No two neighbouring parts of a pattern match the same character, so none takes more than a few looks at each.
const FENCE = /^ {0,3}(`{3,}|~{3,}(?!~))([^`]*)$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?: +|$)(.*)$/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const DASHES = /^:?-+:?$/;
const DEEP = 8;
/** Of a table. Browsers take seconds to lay out one of thousands of columns. What goes beyond is text. */
export const MOST_COLUMNS = 64, MOST_CELLS = 8192;

export function parse(text, depth = 0) {
  const lines = text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n");
  const out = [];
  let at = 0, open = [];
  const close = () => {
    if (open.length) out.push({ kind: "p", text: open.join("\n") });
    open = [];
  };
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if ((found = FENCE.exec(line))) {
      close();
      const body = [];
      const end = new RegExp(`^ {0,3}${found[1][0]}{${found[1].length},}\\s*$`);
      let closed = false;
      for (at++; at < lines.length && !closed; at++) {
        if (end.test(lines[at])) closed = true;
        else body.push(lines[at]);
      }
      out.push({ kind: "code", lang: /^\s*([\w+#.-]*)/.exec(found[2])[1], text: body.join("\n") });
    } else if (!line.trim()) {
      close();
      at++;
    } else if ((found = HEADING.exec(line))) {
      close();
      out.push({ kind: "h", level: found[1].length, text: heading(found[2]) });
      at++;
    } else if (RULE.test(line)) {
      close();
      out.push({ kind: "hr" });
      at++;
    } else if (/^ {0,3}>/.test(line) && depth < DEEP) {
      close();
      const body = [];
      for (; at < lines.length && /^ {0,3}>/.test(lines[at]); at++) body.push(lines[at].replace(/^ {0,3}> ?/, ""));
      out.push({ kind: "quote", blocks: parse(body.join("\n"), depth + 1) });
    } else if (ITEM.test(line) && depth < DEEP) {
      close();
      at = list(lines, at, depth, out);
    } else if (line.includes("|") && at + 1 < lines.length && isTable(line, lines[at + 1])) {
      close();
      const rows = [cells(line)], columns = rows[0].length;
      for (at += 2; at < lines.length && lines[at].includes("|") && rows.length * columns < MOST_CELLS; at++) {
        rows.push(cells(lines[at]).slice(0, columns));
      }
      out.push({ kind: "table", rows });
    } else {
      open.push(line.trim());
      at++;
    }
  }
  close();
  return out;
}

function list(lines, at, depth, out) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const made = { kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items: [] };
  let body = null, indent = 0, blank = false;
  for (; at < lines.length; at++) {
    const line = lines[at], found = ITEM.exec(line);
    const deeper = body && line.trim() && line.search(/\S/) >= indent;
    if (!line.trim()) {
      blank = true;
      body.push("");
    } else if (deeper) {
      body.push(line.slice(indent));
      blank = false;
    } else if (found && /\d/.test(found[2]) === ordered && !RULE.test(line)) {
      indent = found[1].length + found[2].length + 1;
      made.items.push((body = [found[3]]));
      blank = false;
    } else if (blank || found || FENCE.test(line) || HEADING.test(line)) break;
    else body.push(line.trim());
  }
  made.items = made.items.map((b) => parse(b.join("\n"), depth + 1));
  out.push(made);
  return at;
}

/** The text of a heading without the marks that may close it. */
function heading(text) {
  const whole = text.trimEnd();
  let end = whole.length;
  while (whole[end - 1] === "#") end--;
  return whole[end - 1] === " " ? whole.slice(0, end).trimEnd() : whole;
}

/** Is this a table's head, and the line below it? As many cells each, as GitHub has it. */
function isTable(head, below) {
  if (!below.includes("|") || !below.includes("-")) return false;
  const made = cells(below);
  return made.length <= MOST_COLUMNS && made.every((c) => DASHES.test(c)) && cells(head).length === made.length;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const LINK = /\[([^[\]\n]{1,300})\]\((\S{1,2000}?)\)/y;
const BARE = /https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_]/y;

/** Inline text as data: strings, and {kind, parts | text | href}. */
export function inline(text, depth = 0) {
  const out = [], none = new Set();
  let plain = "", at = 0;
  const push = (part) => {
    if (plain) out.push(plain);
    plain = "";
    out.push(part);
  };
  scan: while (at < text.length) {
    const c = text[at];
    if (c === "\\" && /[\\`*_{}[\]()#+\-.!~|>]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    if (c === "`") {
      const ticks = /`+/y;
      ticks.lastIndex = at;
      const mark = ticks.exec(text)[0];
      const end = none.has(mark) ? -1 : text.indexOf(mark, at + mark.length);
      if (end > 0) {
        push({ kind: "code", text: text.slice(at + mark.length, end).trim() });
        at = end + mark.length;
      } else {
        none.add(mark);
        plain += mark;
        at += mark.length;
      }
      continue;
    }
    if (c === "[" || c === "h") {
      const form = c === "[" ? LINK : BARE;
      form.lastIndex = at;
      const found = form.exec(text);
      const href = found && safe(found[2] ?? found[0]);
      if (href) {
        push({ kind: "a", href, parts: c === "[" && depth < DEEP ? inline(found[1], depth + 1) : [found[1] ?? found[0]] });
        at += found[0].length;
        continue;
      }
    }
    if (depth < DEEP && (c === "*" || c === "_" || c === "~")) {
      for (const [mark, kind] of MARKS) {
        if (!text.startsWith(mark, at) || none.has(mark)) continue;
        const from = at + mark.length;
        const inWord = c === "_" && /\w/.test(text[at - 1] ?? "");
        if (/\s|^$/.test(text[from] ?? "") || inWord) continue;
        const end = closing(text, mark, from + 1);
        if (end < 0) {
          none.add(mark);
          continue;
        }
        push({ kind, parts: inline(text.slice(from, end), depth + 1) });
        at = end + mark.length;
        continue scan;
      }
    }
    plain += c;
    at++;
  }
  if (plain) out.push(plain);
  return out;
}

/** Where the mark ends what it began: the last of a run for a double mark, and no run at all for a single one. */
function closing(text, mark, from) {
  for (let end = text.indexOf(mark, from); end >= 0; end = text.indexOf(mark, end + 1)) {
    const begin = end;
    while (text[end + mark.length] === mark[0]) end++;
    if (mark.length === 1 && end > begin) continue;
    if (!/\s/.test(text[begin - 1]) && !(mark[0] === "_" && /\w/.test(text[end + mark.length] ?? ""))) return end;
  }
  return -1;
}

/** The address if it may be followed, else "". */
export function safe(href) {
  return /^(https?:\/\/|mailto:)/i.test(href) ? href : "";
}

const TAGS = { h: "h", quote: "blockquote", p: "p" };

/** DOM of what `parse` made. codeBlock(text, lang) makes the element of a code block. */
export function nodes(blocks, codeBlock) {
  const made = document.createDocumentFragment();
  for (const b of blocks) made.append(block(b, codeBlock));
  return made;
}

function block(b, codeBlock) {
  if (b.kind === "code") return codeBlock(b.text, b.lang);
  if (b.kind === "hr") return document.createElement("hr");
  if (b.kind === "list") {
    const made = document.createElement(b.ordered ? "ol" : "ul");
    if (b.ordered && b.start !== 1) made.start = b.start;
    for (const item of b.items) {
      const li = document.createElement("li");
      if (item.length && item[0].kind === "p") spans(li, item.shift().text);
      li.append(nodes(item, codeBlock));
      made.append(li);
    }
    return made;
  }
  if (b.kind === "table") {
    const wrap = document.createElement("div"), made = document.createElement("table");
    wrap.className = "table";
    b.rows.forEach((row, i) => {
      const tr = made.insertRow();
      for (const cell of row) spans(tr.appendChild(document.createElement(i ? "td" : "th")), cell);
    });
    wrap.append(made);
    return wrap;
  }
  const made = document.createElement(b.kind === "h" ? `h${Math.min(6, b.level + 2)}` : TAGS[b.kind]);
  if (b.blocks) made.append(nodes(b.blocks, codeBlock));
  else spans(made, b.text);
  return made;
}

function spans(parent, text) {
  append(parent, inline(text));
}

function append(parent, parts) {
  for (const part of parts) {
    if (typeof part === "string") {
      parent.append(part);
      continue;
    }
    const made = document.createElement(part.kind);
    if (part.kind === "a") {
      made.href = part.href;
      made.rel = "noopener noreferrer";
      made.target = "_blank";
    }
    if (part.text !== undefined) made.textContent = part.text;
    else append(made, part.parts);
    parent.append(made);
  }
}
