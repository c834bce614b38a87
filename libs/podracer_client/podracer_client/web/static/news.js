// The newest values and the logs of one job, or of all jobs, from server-sent events.
const LIMITS = { evaluations: 100_000, events: 2_000 };

export function follow(job, onChange) {
  const news = { values: {}, logs: {}, first: {}, close };
  let source, timer;

  function open() {
    source = new EventSource(job ? `/api/news?job=${encodeURIComponent(job)}` : "/api/news");
    source.onopen = () => {
      // The stream begins with everything.
      Object.assign(news, { values: {}, logs: { evaluations: [], events: [] }, first: { evaluations: 0, events: 0 } });
      onChange(["all"]);
    };
    source.onmessage = (message) => take(JSON.parse(message.data));
    source.onerror = () => {
      news.values.connection = { state: "reconnecting", message: "the page's own server does not answer" };
      onChange(["connection"]);
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, 1000 + 2000 * Math.random());
    };
  }

  function take(frame) {
    for (const [key, value] of Object.entries(frame.values)) {
      if (value === null) delete news.values[key];
      else news.values[key] = value;
    }
    for (const [name, rows] of Object.entries(frame.logs)) {
      const log = news.logs[name];
      log.push(...rows);
      const surplus = log.length - LIMITS[name];
      if (surplus > 0) {
        log.splice(0, surplus + LIMITS[name] / 10);
        news.first[name] += surplus + LIMITS[name] / 10;
      }
    }
    onChange([...Object.keys(frame.values), ...Object.keys(frame.logs)]);
  }

  function close() {
    clearTimeout(timer);
    source.close();
  }

  open();
  return news;
}

/** The values whose keys begin with `prefix/`. */
export function all(news, prefix) {
  return Object.entries(news.values)
    .filter(([key]) => key.startsWith(`${prefix}/`))
    .map(([, value]) => value);
}

/** Whether one of the names has changed; a new view, theme or stream changes all. */
export function touches(changed, ...names) {
  return ["all", "route", "theme", ...names].some((name) => changed.has(name));
}
