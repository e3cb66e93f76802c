/**
 * A turn as a picture: its runs, model calls and tool calls on an axis of time.
 *
 * The axis is true to scale, except where no process worked: a long wait is drawn short, with its
 * length written on it. The same facts stand in a table below.
 */

import {Problem, at, get} from "./api.js";
import {fill, h, renew, svg} from "./dom.js";
import {clock, costOfAll, count, counted, duration, outcomeText, shortened} from "./text.js";

const LEFT = 58;
const NARROWEST = 470; // a narrower place scrolls
const BREAK = 56; // the most that a wait takes
const RUN = 48; // the least that a run takes
const LANE = 24;
const TOP = 52;
const BAND = 22; // of the processes, above everything else
const MOST_LANES = 10;
const MOST_ROWS = 200;
const STEPS = [
  0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600,
  86400,
];

/** The panel of a conversation. Its parts stay when it is read again, for who is reading them. */
export class Timeline {
  /**
   * @param {import("./conversation.js").Conversation} conversation
   * @param {HTMLElement} place
   */
  constructor(conversation, place) {
    this.conversation = conversation;
    this.place = place;
    this.turn = 0; // the one that is shown
    this.isWhole = false; // a reader wants all rows
    /** @type {Row[]} */
    this.rows = [];
    this.title = h("h3", {tabindex: -1});
    this.earlier = h("a", {}, "← Earlier");
    this.later = h("a", {}, "Later →");
    this.facts = h("p", {class: "facts"});
    this.hidden = h(
      "p",
      {class: "notice"},
      "Hidden by a rewind: the model no longer reads it.",
    );
    this.picture = h("div", {
      class: "picture-scroll",
      tabindex: 0,
      role: "group",
      "aria-label": "Timeline picture",
    });
    this.legend = h("div", {class: "legend"});
    this.missing = h("p", {class: "faint"});
    this.body = h("tbody", {});
    this.more = h("button", {type: "button", class: "quiet", onclick: () => this.turnOver()});
    this.parts = [
      h(
        "nav",
        {class: "pager", "aria-label": "Turns"},
        h("span", {}, this.earlier),
        this.title,
        h("span", {}, this.later),
      ),
      this.facts,
      this.hidden,
      this.picture,
      this.legend,
      this.missing,
      tableOf(this.body, this.more),
    ];
  }

  /**
   * Read a turn, or read it again.
   *
   * @param {number} turn
   * @returns {Promise<() => Node[]>} what the panel shows then
   */
  async read(turn) {
    if (!turn) return () => [h("p", {class: "empty"}, "There is no turn yet.")];
    const path = at(this.conversation.id, `/turns/${turn}/timeline`);
    const found = await get(path).catch((error) => {
      if (error instanceof Problem && ["turn_not_found", "value_refused"].includes(error.code))
        return null;
      throw error;
    });
    return () => (found ? this.draw(found) : [this.absent(turn)]);
  }

  /** @param {number} turn */
  href(turn) {
    return `#/c/${encodeURIComponent(this.conversation.id)}/timeline/${turn}`;
  }

  /** @param {number} turn */
  absent(turn) {
    const last = this.conversation.record.turn_count;
    const newest = h("a", {href: this.href(last)}, `Turn ${last}`);
    const text = `There is no turn ${turn}. `;
    return h("p", {class: "empty"}, text, last ? [newest, " is the newest."] : "");
  }

  /** @param {any} found @returns {Node[]} */
  draw({turn, runs, complete}) {
    const isOther = turn !== this.turn;
    this.turn = turn;
    if (isOther) this.isWhole = false;
    this.page(runs[0].turn, runs.at(-1).turn);
    fill(this.facts, summary(runs));
    this.hidden.hidden = !runs.some((/** @type {any} */ run) => run.hidden);
    fill(this.picture, picture(runs, this.place.clientWidth - 56));
    if (isOther) this.picture.scrollLeft = 0;
    renew(this.legend, legend(runs));
    fill(this.missing, missing(runs, complete));
    this.missing.hidden = !this.missing.firstChild;
    this.rows = rowsOf(runs);
    this.list();
    return this.parts;
  }

  /** The ways to other turns. @param {number} first @param {number} end of the shown ones */
  page(first, end) {
    const {earlier, later, title} = this;
    fill(title, first === end ? `Turn ${first}` : `Turns ${first} to ${end}`);
    const isHere = [earlier, later].includes(document.activeElement);
    earlier.href = this.href(first - 1);
    earlier.hidden = first <= 1;
    later.href = this.href(end + 1);
    later.hidden = end >= this.conversation.record.turn_count;
    if (isHere && !document.activeElement?.checkVisibility()) title.focus();
  }

  list() {
    const {rows, isWhole} = this;
    renew(this.body, (isWhole ? rows : rows.slice(0, MOST_ROWS)).map(row));
    this.more.hidden = rows.length <= MOST_ROWS;
    const some = isWhole ? `the first ${MOST_ROWS}` : `all ${count(rows.length)}`;
    fill(this.more, `Show ${some} rows`);
  }

  /** Show all rows, or some again. */
  turnOver() {
    this.isWhole = !this.isWhole;
    this.list();
  }
}

/** What the picture leaves out. @param {any[]} runs @param {boolean} complete */
function missing(runs, complete) {
  const calls = leftOut(runs);
  const marks = runs.reduce((sum, run) => sum + run.marks_left_out, 0);
  const parts = [
    calls ? counted(calls, "more call") : "",
    marks ? counted(marks, "more event") : "",
  ].filter(Boolean);
  return [
    parts.length ? `Not drawn: ${parts.join(" and ")}. ` : null,
    complete ? null : "This turn is very long: its end is not drawn.",
  ];
}

/** @param {any[]} runs */
function leftOut(runs) {
  return runs.reduce((sum, run) => sum + run.left_out, 0);
}

/** @param {any[]} runs */
function summary(runs) {
  const spans = runs.flatMap((run) => run.spans);
  const retried = spans.filter((span) => span.kind === "model" && span.attempts > 1).length;
  const models = runs.reduce((sum, run) => sum + run.model_calls, 0);
  const tools = spans.length + leftOut(runs) - models;
  const lost = runs.filter((run) => run.outcome === "interrupted").length;
  const worked = runs.reduce((sum, run) => sum + seconds(run.started, endOfWork(run)), 0);
  const usage = runs.reduce((sum, run) => sum + (run.usage.total_tokens ?? 0), 0);
  const price = costOfAll(runs.map((run) => run.usage));
  return [
    counted(runs.length, "run"),
    lost ? `${counted(lost, "process")} lost`.replace("processs", "processes") : "",
    `${duration(worked)} of work`,
    counted(models, "model call") + (retried ? `, ${retried} retried` : ""),
    counted(tools, "tool call"),
    usage ? `${count(usage)} tokens` : "",
    price,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** @param {string | number} from @param {string | number} to */
function seconds(from, to) {
  return Math.max(0, (time(to) - time(from)) / 1000);
}

/** @param {string | number} moment */
function time(moment) {
  return typeof moment === "number" ? moment : Date.parse(moment);
}

/** @param {any} run */
function endOfWork(run) {
  return time(run.last_sign ?? run.ended ?? Date.now());
}

/**
 * @typedef {{kind: "work" | "dead" | "wait", from: number, to: number, run: any, x: number,
 *   width: number}} Segment
 */

/** The parts of the axis, in order. @param {any[]} runs @param {number} wide @returns {Segment[]} */
function segmentsOf(runs, wide) {
  const made = /** @type {Segment[]} */ ([]);
  const add = (
    /** @type {Segment["kind"]} */ kind,
    /** @type {number} */ from,
    /** @type {number} */ to,
    /** @type {any} */ run,
  ) => {
    if (to > from || kind === "work")
      made.push({kind, from, to: Math.max(from, to), run, x: 0, width: 0});
  };
  runs.forEach((run, i) => {
    if (i > 0) add("wait", time(runs[i - 1].ended ?? run.started), time(run.started), runs[i - 1]);
    add("work", time(run.started), endOfWork(run), run);
    if (run.last_sign && run.ended) add("dead", endOfWork(run), time(run.ended), run);
  });
  const room = Math.max(NARROWEST, wide) - LEFT - 16;
  const all = made.reduce((sum, one) => sum + one.to - one.from, 0) || 1;
  const shortest = 34;
  for (const one of made) {
    const share = ((one.to - one.from) / all) * room;
    if (one.kind !== "work") one.width = Math.min(BREAK, Math.max(shortest, share));
  }
  const left = room - made.reduce((sum, one) => sum + one.width, 0);
  const works = made.filter((one) => one.kind === "work");
  const worked = works.reduce((sum, one) => sum + one.to - one.from, 0) || 1;
  const spare = Math.max(works.length * 1.3 * RUN, left) - works.length * RUN;
  let x = LEFT;
  for (const one of made) {
    if (one.kind === "work") one.width = RUN + ((one.to - one.from) / worked) * Math.max(0, spare);
    one.x = x;
    x += one.width;
  }
  return made;
}

/** @param {any[]} runs @param {number} wide */
function picture(runs, wide) {
  const segments = segmentsOf(runs, wide);
  const place = (/** @type {string | number} */ moment) => {
    const t = time(moment);
    const inside = segments.find((one) => t <= one.to) ?? segments[segments.length - 1];
    const share = inside.to > inside.from ? (t - inside.from) / (inside.to - inside.from) : 0;
    return inside.x + Math.min(1, Math.max(0, share)) * inside.width;
  };
  const last = segments[segments.length - 1];
  const works = segments.filter((one) => one.kind === "work");
  const signs = marksOf(runs, place);
  const width = Math.max(last.x + last.width, ...signs.map(([, x]) => x + 10)) + 16;
  const bars = lanesOf(runs, place);
  const lanes = Math.max(1, ...bars.map((one) => one.lane + 1));
  const marks = TOP + lanes * LANE + 6;
  const height = marks + 48;
  const bands = bandsOf(segments);
  const above = bands.length ? BAND : 0;
  const parts = [
    ...segments.flatMap((one) => segment(one, height)),
    ...works.flatMap((one, i) => ticks(one, height, (works[i + 1]?.x ?? width) - one.x)),
    label(6, TOP + 16, "Model"),
    lanes > 1 ? label(6, TOP + LANE + 16, "Tools") : null,
    label(6, marks + 16, "Events"),
    ...bars.flatMap((one) => [began(one, height, place), tries(one, place)]),
    ...bars.map(bar),
    ...signs.map(([one, x]) => mark(one, x, marks)),
    ...runs.filter((run) => run.last_sign).map((run) => death(place(run.last_sign), marks + 20)),
  ];
  const high = height + above;
  const props = {viewBox: `0 0 ${width} ${high}`, width, height: high, role: "img"};
  return svg(
    "svg",
    {...props, class: "timeline", "aria-label": `Timeline: ${summary(runs)}`},
    svg("defs", {}, hatch("hatch"), hatch("tried")),
    above ? label(6, 15, "Process") : null,
    ...bands.map((one, i) => band(one, bands[i + 1]?.x ?? width)),
    svg("g", {transform: `translate(0 ${above})`}, parts),
  );
}

/**
 * The processes, each from its first run to its last one: a gap ends a band, and a wait only if
 * another process follows.
 *
 * @param {Segment[]} segments
 */
function bandsOf(segments) {
  const made = /** @type {{name: string, runs: any[], x: number, end: number, kind: number}[]} */ ([]);
  const kinds = /** @type {Map<string, number>} */ (new Map());
  for (const one of segments.filter((one) => one.kind === "work" && one.run.process)) {
    const name = one.run.process;
    const last = made.at(-1);
    const same = last?.name === name && !last?.runs.at(-1).last_sign;
    if (last && same) {
      last.runs.push(one.run);
      last.end = one.x + one.width;
    } else {
      if (!kinds.has(name)) kinds.set(name, kinds.size % 3);
      const kind = kinds.get(name) ?? 0;
      made.push({name, runs: [one.run], x: one.x, end: one.x + one.width, kind});
    }
  }
  return made;
}

/** @param {ReturnType<typeof bandsOf>[number]} one @param {number} next where another begins */
function band(one, next) {
  const width = one.end - one.x - 2;
  const long = one.name.length * 6.4 + 10;
  const outside = long > width && long < next - one.end;
  const turns = one.runs.map((run) => run.turn);
  const which = turns.length > 1 ? `runs ${turns[0]} to ${turns.at(-1)}` : `run ${turns[0]}`;
  const room = outside ? one.name.length : Math.max(2, (width - 10) / 6.4);
  return svg(
    "g",
    {class: `process kind${one.kind}`},
    svg("title", {}, `Process ${one.name}: ${which}`),
    svg("rect", {x: one.x, y: 3, width: Math.max(1, width), height: 17, rx: 5}),
    svg("text", {x: outside ? one.end + 3 : one.x + 6, y: 15}, shortened(one.name, room)),
  );
}

/** @param {string} id of the pattern, and the class of its lines */
function hatch(id) {
  const line = svg("path", {d: "M-2 8 L8 -2 M0 10 L10 0", class: id});
  const props = {id, width: 8, height: 8, patternUnits: "userSpaceOnUse"};
  return svg("pattern", props, line);
}

/** @param {number} x @param {number} y @param {string} text */
function label(x, y, text) {
  return svg("text", {x, y, class: "lane"}, text);
}

/** @param {Segment} one @param {number} height */
function segment(one, height) {
  const long = duration((one.to - one.from) / 1000);
  const middle = one.x + one.width / 2;
  const box = {x: one.x, y: 26, width: Math.max(1, one.width), height: height - 44};
  if (one.kind === "work") {
    const name = `Run ${one.run.turn}`;
    const words = one.width > 110 ? `${name} · ${clock(one.from)}` : name;
    const kind = one.run.outcome ?? "running";
    return [
      svg("rect", {...box, class: `work ${kind}`, rx: 4}),
      svg("rect", {x: one.x, y: 4, width: one.width - 2, height: 20, rx: 5, class: `head ${kind}`}),
      svg(
        "text",
        {x: one.x + 7, y: 18, class: "head-text"},
        shortened(words, Math.max(2, one.width / 6.4)),
      ),
      svg("title", {}, `${name}, ${clock(one.from)}, ${long}`),
    ];
  }
  const dead = one.kind === "dead";
  const title = dead
    ? `${processOf(one.run)} was gone, and it took ${long} until ${finder(one.run)} found that`
    : `${long} until a person continued or answered`;
  return [
    svg(
      "g",
      {},
      svg("title", {}, title),
      svg("rect", {...box, class: one.kind, fill: dead ? "url(#hatch)" : null}),
    ),
    svg("text", {x: middle, y: 13, class: "gap", "text-anchor": "middle"}, dead ? "gone" : "wait"),
    svg(
      "text",
      {x: middle, y: 23, class: "gap", "text-anchor": "middle"},
      long.split(" ").slice(0, 2).join(" "),
    ),
  ];
}

/** @param {any} run */
function processOf(run) {
  return `The process of run ${run.turn}${run.process ? `, ${run.process},` : ""}`;
}

/** @param {any} run */
function finder(run) {
  return run.recovered_by ? `process ${run.recovered_by}` : "another process";
}

/** @param {Segment} one @param {number} height @param {number} room up to the next run */
function ticks(one, height, room) {
  const all = (one.to - one.from) / 1000;
  const step = STEPS.find((size) => (size / all) * one.width >= 64) ?? Infinity;
  const made = [];
  for (let at = step; at < all - step / 3 && made.length < 60; at += step) {
    const x = one.x + (at / all) * one.width;
    made.push(svg("line", {x1: x, x2: x, y1: 26, y2: height - 18, class: "tick"}));
    if (x - one.x < 76) continue; // the clock stands there
    made.push(
      svg(
        "text",
        {x, y: height - 5, class: "tick-text", "text-anchor": "middle"},
        `+${duration(at)}`,
      ),
    );
  }
  const from = svg(
    "text",
    {x: one.x, y: height - 5, class: "tick-text"},
    room >= 52 ? clock(one.from) : "",
  );
  return [from, ...made];
}

/**
 * The bars with their lanes: the model's is the first, and no two bars of a lane overlap.
 *
 * @param {any[]} runs
 * @param {(moment: string | number) => number} place
 */
function lanesOf(runs, place) {
  const ends = /** @type {number[]} */ ([]);
  const many = runs.reduce((sum, run) => sum + run.spans.length, 0) > 60;
  return runs.flatMap((run) => {
    const over = run.spans
      .filter((/** @type {any} */ one) => one.ended)
      .map((/** @type {any} */ one) => time(one.ended));
    return run.spans.map((/** @type {any} */ span) => {
      const x = place(span.started);
      const cut = span.ended === null;
      const until = cut ? endOfWork(run) : time(span.ended);
      const width = Math.max(cut ? 8 : 3, place(until) - x);
      const name =
        span.kind === "model" ? shortened(span.name || "model", 40) : shortened(span.name, 40);
      const inside = width > name.length * 6.2 + 8;
      const reach =
        x + width + (inside || many || span.kind === "model" ? 2 : name.length * 6.2 + 8);
      let lane = 0;
      if (span.kind !== "model") {
        lane = ends.findIndex((end, i) => i > 0 && end <= x);
        if (lane < 0) lane = Math.min(MOST_LANES, Math.max(1, ends.length));
      }
      ends[0] ??= 0;
      ends[lane] = Math.max(ends[lane] ?? 0, reach);
      return {
        span,
        run,
        from: firstTry(span, run, over),
        lane,
        x,
        width,
        name,
        inside,
        text: inside || (!many && span.kind !== "model"),
      };
    });
  });
}

/**
 * When the first attempt of a model call can have begun.
 *
 * @param {any} span
 * @param {any} run
 * @param {number[]} ends of the calls of the run
 */
function firstTry(span, run, ends) {
  const started = time(span.started);
  if (!(span.attempts > 1)) return started;
  return ends.reduce(
    (last, end) => (end <= started ? Math.max(last, end) : last),
    time(run.started),
  );
}

/**
 * Where an iteration begins.
 *
 * @param {ReturnType<typeof lanesOf>[number]} one
 * @param {number} height
 * @param {(moment: string | number) => number} place
 */
function began({span, from}, height, place) {
  if (span.kind !== "model") return null;
  const x = place(from);
  const line = {x1: x, x2: x, y1: 28, y2: height - 20, class: "iteration"};
  return svg(
    "g",
    {},
    svg("title", {}, `Iteration ${span.iteration}`),
    svg("line", line),
    svg("text", {x: x + 3, y: TOP - 8, class: "gap"}, String(span.iteration)),
  );
}

/**
 * The attempts of a model call that failed, with the waits between them: the log keeps how many.
 *
 * @param {ReturnType<typeof lanesOf>[number]} one
 * @param {(moment: string | number) => number} place
 */
function tries({span, from, x, lane}, place) {
  if (!(span.attempts > 1)) return null;
  const long = duration((time(span.started) - from) / 1000);
  const start = place(from);
  const width = Math.max(3, x - start);
  return svg(
    "g",
    {class: "tries"},
    svg("title", {}, `${counted(span.attempts - 1, "attempt")} failed, and waits: ${long}`),
    svg("rect", {x: start, y: TOP + lane * LANE, width, height: 19, rx: 4}),
    width > 40 ? svg("text", {x: start + 6, y: TOP + lane * LANE + 14}, `↻ ${long}`) : null,
  );
}

/** @param {ReturnType<typeof lanesOf>[number]} one */
function bar(one) {
  const {span, lane, x, width} = one;
  const y = TOP + lane * LANE;
  const kinds = [
    span.kind,
    span.is_error ? "failed" : "",
    span.ended === null ? "open" : "",
    span.attempts > 1 ? "retried" : "",
  ];
  const text = one.text
    ? svg(
        "text",
        {
          x: one.inside ? x + 5 : x + width + 4,
          y: y + 14,
          class: one.inside ? "bar-text" : "bar-text outside",
        },
        one.name,
      )
    : null;
  const tries =
    span.attempts > 1
      ? svg(
          "text",
          {x: x + width - 4, y: y + 14, class: "bar-text", "text-anchor": "end"},
          `↻${span.attempts}`,
        )
      : null;
  return svg(
    "g",
    {},
    svg("title", {}, words(span, one.run)),
    svg("rect", {x, y, width, height: 19, rx: 4, class: `bar ${kinds.join(" ")}`}),
    text,
    width > 40 ? tries : null,
  );
}

/** A span as a sentence. @param {any} span @param {any} run @param {boolean} [brief] */
function words(span, run, brief = false) {
  const long = brief ? "" : duration(seconds(span.started, span.ended ?? endOfWork(run)));
  const facts = [
    span.kind === "model" ? `Model call ${span.name}` : `Tool ${span.name}`,
    span.ended === null
      ? span.unknown || run.ended
        ? `began, and has no result of its own`
        : `runs ${long && `for ${long}`}`
      : long,
    span.kind === "model" && span.iteration ? `iteration ${span.iteration}` : "",
    span.attempts > 1 ? `${span.attempts} attempts` : "",
    span.first_delta_s ? `first words after ${duration(span.first_delta_s)}` : "",
    span.tokens ? `${count(span.tokens)} tokens` : "",
    span.is_error ? "failed" : "",
  ];
  return facts.filter(Boolean).join(", ");
}

const SIGNS = /** @type {Record<string, string>} */ ({
  approval: "✓",
  asks: "?",
  budget: "$",
  artifact: "◆",
  error: "!",
  message: "➤",
  recovery: "↻",
});

/** @param {any} one */
function markWords(one) {
  const known = /** @type {Record<string, string>} */ ({
    approval: `${one.name}: ${one.decision}${one.actor_id ? ` by ${one.actor_id}` : ""}${one.text ? `, ${one.text}` : ""}`,
    asks: `Asks about ${one.name}`,
    budget: `Waits for the budget: ${one.text}`,
    artifact: `Artifact ${one.name}, version ${one.version}`,
    error: `Error ${one.name}: ${one.text}`,
    message: `Message: ${one.name}`,
    recovery: one.name,
  });
  return known[one.kind] ?? one.kind;
}

/** The marks beside each other. @param {any[]} runs @param {(moment: string | number) => number} place */
function marksOf(runs, place) {
  let last = 0;
  return runs
    .flatMap((run) => [...run.marks, ...recovery(run)])
    .map((one) => {
      last = Math.max(place(one.at), last + 17);
      return /** @type {[any, number]} */ ([one, last]);
    });
}

/** The moment when a lost run was ended, as a mark. @param {any} run */
function recovery(run) {
  if (!run.ended || run.outcome !== "interrupted") return [];
  const name = `${finder(run)} finds that run ${run.turn} was interrupted, and ends it`;
  return [{kind: "recovery", name: name[0].toUpperCase() + name.slice(1), at: run.ended}];
}

/** @param {any} one @param {number} x @param {number} y */
function mark(one, x, y) {
  const denied = one.kind === "approval" && one.decision !== "approved";
  return svg(
    "g",
    {class: `mark ${one.kind} ${denied ? "denied" : ""}`},
    svg("title", {}, `${clock(one.at)} ${markWords(one)}`),
    svg("circle", {cx: x, cy: y + 11, r: 8}),
    svg("text", {x, y: y + 15, "text-anchor": "middle"}, denied ? "✗" : (SIGNS[one.kind] ?? "•")),
  );
}

/** @param {number} x @param {number} bottom */
function death(x, bottom) {
  return svg(
    "g",
    {class: "death"},
    svg("title", {}, "The last thing that this process stored"),
    svg("line", {x1: x, x2: x, y1: 26, y2: bottom}),
    svg("text", {x, y: 42, "text-anchor": "middle"}, "✕"),
  );
}

/** @param {any} run */
function lastSign(run) {
  return `Last sign of the process of run ${run.turn}${run.process ? `: ${run.process}` : ""}`;
}

/** What the picture's colours and signs mean, as far as it has them. @param {any[]} runs */
function legend(runs) {
  const spans = runs.flatMap((run) => run.spans);
  const kinds = new Set([...runs.flatMap((run) => run.marks), ...spans].map((one) => one.kind));
  const isLost = runs.some((run) => run.last_sign);
  const items = /** @type {[string, string, boolean][]} */ ([
    ["model", "model call", kinds.has("model")],
    ["tool", "tool call", kinds.has("tool")],
    ["tries", "failed attempts and waits", spans.some((span) => span.attempts > 1)],
    ["failed", "failed", spans.some((span) => span.is_error)],
    ["open", "began, no result of its own", spans.some((span) => span.ended === null)],
    ["dead", "process gone", isLost],
    ["wait", "waited", runs.length > 1],
  ]);
  const signs = [
    kinds.has("model") ? "1, 2: iterations" : "",
    kinds.has("approval") ? "✓ approval" : "",
    kinds.has("asks") ? "? question" : "",
    kinds.has("budget") ? "$ budget" : "",
    kinds.has("artifact") ? "◆ artifact" : "",
    kinds.has("message") ? "➤ message" : "",
    kinds.has("error") ? "! error" : "",
    isLost ? "✕ last sign of a process · ↻ another process takes over" : "",
  ];
  return [
    ...items
      .filter(([, , isThere]) => isThere)
      .map(([kind, text]) => h("span", {}, h("i", {class: `key ${kind}`}), text)),
    h("span", {class: "faint"}, signs.filter(Boolean).join(" · ")),
  ];
}

/** @typedef {{at: string, what: string, long: string}} Row of the table */

/** The same facts as the picture has, in the order of time. @param {any[]} runs @returns {Row[]} */
function rowsOf(runs) {
  return runs
    .flatMap((run) => [
      {
        at: run.started,
        what: [
          `Run ${run.turn} begins`,
          run.continues ? `continues turn ${run.continues}` : "",
          run.process ? `in process ${run.process}` : "",
        ]
          .filter(Boolean)
          .join(", "),
        long: "",
      },
      ...run.spans.map((/** @type {any} */ span) => ({
        at: span.started,
        what: words(span, run, true),
        long: span.ended ? duration(seconds(span.started, span.ended)) : "",
      })),
      ...run.marks.map((/** @type {any} */ one) => ({at: one.at, what: markWords(one), long: ""})),
      run.last_sign
        ? {at: run.last_sign, what: lastSign(run), long: ""}
        : null,
      run.ended
        ? {
            at: run.ended,
            what:
              run.outcome === "interrupted"
                ? recovery(run)[0].name
                : `Run ${run.turn} ends: ${outcomeText(run)}`,
            long: run.last_sign ? `${duration(seconds(run.last_sign, run.ended))} later` : "",
          }
        : null,
    ])
    .filter((one) => one !== null)
    .sort((a, b) => time(a.at) - time(b.at));
}

/** @param {Row} one */
function row(one) {
  return h(
    "tr",
    {},
    h("td", {}, clock(one.at)),
    h("td", {}, one.what),
    h("td", {class: "number"}, one.long),
  );
}

/** @param {Node} body @param {Node} more */
function tableOf(body, more) {
  const names = ["Time", "Event", "Duration"];
  const head = h(
    "tr",
    {},
    names.map((name) => h("th", {scope: "col"}, name)),
  );
  return h(
    "details",
    {class: "fold", open: true},
    h("summary", {}, "As a table"),
    h("table", {class: "facts-table"}, h("thead", {}, head), body),
    more,
  );
}
