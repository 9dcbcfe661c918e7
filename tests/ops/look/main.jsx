// Draws one dashboard from the results of its queries (live.py --dump), with Grafana's theme, units, colors and components.
// @grafana/ui does not have state timelines, heat maps and histograms; they are drawn here like Grafana's.
import React from "react";
import { createRoot } from "react-dom/client";
import { createTheme, FieldType, getDisplayProcessor, getFieldColorModeForField, getValueFormat, dateTime, formattedValueToString } from "@grafana/data";
import { BarGauge, BigValue, LegendDisplayMode, PanelChrome, ThemeContext, TimeSeries } from "@grafana/ui";

const theme = createTheme({ colors: { mode: "dark" } });
const uid = new URLSearchParams(location.search).get("d");
const [dashboard, dump] = await Promise.all([
  fetch(`/dashboards/${uid}.json`).then((answer) => answer.json()),
  fetch("/dump.json").then((answer) => answer.json()),
]);
const shown = dump.shown[uid];
const CELL = 38;
const GAP = 8;
const WIDTH = 1600;

const until = dump.time * 1000;
const from = Math.min(until - 60000, ...Object.values(shown).flatMap((result) => result.flatMap((series) => (series.values ?? []).slice(0, 1).map(([time]) => time * 1000))));
const timeRange = { from: dateTime(from), to: dateTime(until), raw: { from: dateTime(from), to: dateTime(until) } };

const legendOf = (format, labels) =>
  format === "__auto" ? Object.values(labels)[0] ?? "" : format.replace(/\{\{(\w+)\}\}/g, (_, name) => labels[name] ?? "");

// A field with Grafana's display, its unit, color and overrides as Grafana applies them.
function fieldOf(panel, name, values, idx) {
  const config = structuredClone(panel.fieldConfig.defaults);
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    const matches = matcher.id === "byName" ? matcher.options === name : new RegExp(matcher.options.slice(1, -1)).test(name);
    for (const { id, value } of matches ? properties : []) {
      if (id.startsWith("custom.")) config.custom[id.slice(7)] = value;
      else config[id] = value;
    }
  }
  const field = { name, type: FieldType.number, values, config: { ...config, displayName: config.displayName ?? name }, labels: {}, state: { seriesIndex: idx, displayName: config.displayName ?? name } };
  field.display = getDisplayProcessor({ field, theme });
  return field;
}

function fieldsOf(panel) {
  const fields = [];
  for (const target of panel.targets)
    for (const series of shown[`${panel.id}/${target.refId}`] ?? [])
      fields.push({
        labels: series.metric,
        points: (series.values ?? [series.value]).map(([time, value]) => [time * 1000, Number(value)]).filter(([, value]) => !Number.isNaN(value)),
        name: legendOf(target.legendFormat, series.metric),
        target,
      });
  fields.sort((a, b) => a.target.refId.localeCompare(b.target.refId) || a.name.localeCompare(b.name, undefined, { numeric: true }));
  return fields.map((each, idx) => ({ ...each, field: fieldOf(panel, each.name, each.points.map(([, value]) => value), idx) }));
}

function Lines({ panel, width, height }) {
  const all = fieldsOf(panel);
  const frames = all.map(({ points, field }) => ({
    length: points.length,
    fields: [{ name: "time", type: FieldType.time, config: {}, values: points.map(([time]) => time) }, field],
  }));
  for (const frame of frames) frame.fields[1].config.custom = { ...frame.fields[1].config.custom, axisPlacement: "auto", scaleDistribution: { type: "linear" }, pointSize: 4, lineInterpolation: "linear" };
  if (!frames.length) return <Nothing panel={panel} />;
  return (
    <TimeSeries frames={frames} structureRev={1} width={width} height={height} timeRange={timeRange} timeZone="utc"
      legend={{ displayMode: LegendDisplayMode.List, placement: "bottom", showLegend: true, calcs: [] }} replaceVariables={(text) => text} />
  );
}

const Nothing = ({ panel }) => <Middle>{panel.fieldConfig.defaults.noValue ?? "No data"}</Middle>;
const Middle = ({ children }) => <div style={{ height: "100%", display: "grid", placeItems: "center", color: theme.colors.text.secondary, fontSize: 18 }}>{children}</div>;

function Stats({ panel, width, height }) {
  const all = fieldsOf(panel);
  if (!all.length) return <Middle><span style={{ fontSize: 44 }}>{panel.fieldConfig.defaults.noValue ?? "No data"}</span></Middle>;
  return (
    <div style={{ display: "flex" }}>
      {all.map(({ field, points, name }, idx) => {
        const value = field.display(points.at(-1)[1]);
        return <BigValue key={idx} width={width / all.length} height={height} value={{ ...value, title: panel.options.textMode === "value_and_name" ? name : undefined }} colorMode={panel.options.colorMode} graphMode="none" justifyMode="center" theme={theme} />;
      })}
    </div>
  );
}

function Bars({ panel, width, height }) {
  const all = fieldsOf(panel);
  return all.map(({ field, points, name }, idx) => (
    <BarGauge key={idx} width={width} height={Math.min(panel.options.maxVizHeight, height / all.length)} field={field.config} display={field.display} value={{ ...field.display(points.at(-1)[1]), title: name }} orientation="horizontal" displayMode={panel.options.displayMode} theme={theme} itemSpacing={6} text={panel.options.text} />
  ));
}

function Spans({ panel, width, height }) {
  const all = fieldsOf(panel);
  if (!all.length) return <Nothing panel={panel} />;
  const labeled = 210;
  const rowHeight = Math.min(34, (height - 24) / all.length);
  const x = (time) => labeled + ((time - from) / (until - from)) * (width - labeled - 8);
  const isHistory = panel.type === "heatmap";
  const heat = (value) => {
    const { min, max } = panel.options.color;
    return `hsl(${120 * (1 - Math.min(1, Math.max(0, (value - min) / (max - min))))} 55% 45%)`;
  };
  return (
    <svg width={width} height={height} fontFamily={theme.typography.fontFamily} fontSize="12">
      {all.map(({ field, points, name }, row) => {
        const spans = [];
        const step = isHistory ? Math.max(1, Math.ceil(points.length / (panel.maxDataPoints ?? 60))) : 1;
        for (let i = 0; i < points.length; i += step) {
          const [time, value] = points[i];
          const last = spans.at(-1);
          if (!isHistory && last && last.value === value && time - last.end <= 2500) last.end = time;
          else spans.push({ start: time, end: time + (isHistory ? 1000 * step : 0), value });
        }
        return (
          <g key={row} transform={`translate(0 ${row * rowHeight})`}>
            <text x={labeled - 8} y={rowHeight / 2 + 4} textAnchor="end" fill={theme.colors.text.primary}>{name}</text>
            {spans.map(({ start, end, value }, idx) => {
              const display = field.display(value);
              const wide = Math.max(2, x(Math.min(end + (isHistory ? 0 : 1000), until)) - x(start));
              return (
                <g key={idx}>
                  <rect x={x(start)} y={2} width={wide - (isHistory ? 1.5 : 0)} height={rowHeight - 4} fill={isHistory ? heat(value) : display.color} fillOpacity="0.85" />
                  {!isHistory && wide > 60 && <text x={x(start) + 6} y={rowHeight / 2 + 4} fill="#fff">{formattedValueToString(display)}</text>}
                </g>
              );
            })}
          </g>
        );
      })}
      {[0, 0.25, 0.5, 0.75, 1].map((part) => (
        <text key={part} x={x(from + part * (until - from))} y={all.length * rowHeight + 16} textAnchor={part === 1 ? "end" : part === 0 ? "start" : "middle"} fill={theme.colors.text.secondary}>
          {new Date(from + part * (until - from)).toISOString().slice(11, 19)}
        </text>
      ))}
    </svg>
  );
}

function Distribution({ panel, width, height }) {
  const values = fieldsOf(panel).flatMap(({ points }) => points.map(([, value]) => value));
  const size = panel.options.bucketSize;
  const counts = Array.from({ length: Math.round(1 / size) }, (_, i) => values.filter((value) => value >= i * size - 1e-9 && value < (i + 1) * size - 1e-9).length);
  const most = Math.max(1, ...counts);
  const bar = (width - 40) / counts.length;
  return (
    <svg width={width} height={height} fontFamily={theme.typography.fontFamily} fontSize="12" fill={theme.colors.text.secondary}>
      {counts.map((count, i) => (
        <g key={i}>
          <rect x={30 + i * bar} y={height - 24 - (count / most) * (height - 50)} width={bar - 2} height={(count / most) * (height - 50)} fill={theme.visualization.getColorByName(i * size < 0.85 ? "green" : i * size < 0.92 ? "yellow" : "red")} fillOpacity="0.75" />
          {count > 0 && <text x={30 + i * bar + bar / 2} y={height - 30 - (count / most) * (height - 50)} textAnchor="middle">{count}</text>}
          {i % 2 === 0 && <text x={30 + i * bar} y={height - 8} textAnchor="middle">{Math.round(i * size * 100)}%</text>}
        </g>
      ))}
    </svg>
  );
}

// The queries merged by their labels, as Grafana's "merge" does.
function Rows({ panel, height }) {
  const rows = new Map();
  const columns = [];
  const names = new Set();
  for (const target of panel.targets) {
    if (!panel.transformations[1].options.excludeByName[panel.targets.length === 1 ? "Value" : `Value #${target.refId}`]) columns.push(target.legendFormat);
    for (const series of shown[`${panel.id}/${target.refId}`] ?? []) {
      const key = JSON.stringify(series.metric);
      Object.keys(series.metric).forEach((name) => names.add(name));
      rows.set(key, { ...(rows.get(key) ?? series.metric), [target.legendFormat]: Number(series.value[1]) });
    }
  }
  if (!rows.size) return <Nothing panel={panel} />;
  const fields = Object.fromEntries(columns.map((name) => [name, fieldOf(panel, name, [], 0)]));
  const { displayName, desc } = panel.options.sortBy[0] ?? {};
  const missing = desc ? -Infinity : Infinity;
  const sorted = [...rows.values()].sort((a, b) => (displayName ? ((a[displayName] ?? missing) - (b[displayName] ?? missing)) * (desc ? -1 : 1) : 0));
  const linked = panel.fieldConfig.overrides.filter(({ properties }) => properties.some(({ id }) => id === "links")).map(({ matcher }) => matcher.options);
  const cell = { padding: "5px 10px", borderBottom: `1px solid ${theme.colors.border.weak}`, whiteSpace: "nowrap", textAlign: "left" };
  return (
    <div style={{ height, overflow: "hidden" }}>
      <table style={{ width: "100%", borderCollapse: "collapse", fontSize: 13 }}>
        <thead><tr>{[...names, ...columns].map((name) => <th key={name} style={{ ...cell, color: theme.colors.text.link }}>{name}</th>)}</tr></thead>
        <tbody>
          {sorted.map((row, idx) => (
            <tr key={idx}>
              {[...names].map((name) => <td key={name} style={{ ...cell, color: linked.includes(name) ? theme.colors.text.link : undefined }}>{row[name]}</td>)}
              {columns.map((name) => {
                if (row[name] === undefined) return <td key={name} style={cell}>–</td>;
                const { config, display } = fields[name];
                const value = display(row[name]);
                const type = config.custom.cellOptions?.type;
                const painted = type === "color-background" ? { background: value.color, color: "#fff" } : type === "color-text" ? { color: value.color, fontWeight: 600 } : {};
                if (type === "gauge")
                  return (
                    <td key={name} style={cell}>
                      <span style={{ display: "inline-block", width: 120, height: 12, background: theme.colors.background.secondary, marginRight: 8 }}>
                        <span style={{ display: "block", height: 12, width: 120 * Math.min(1, row[name]), background: value.color }} />
                      </span>
                      {formattedValueToString(value)}
                    </td>
                  );
                return <td key={name} style={{ ...cell, ...painted }}>{formattedValueToString(value)}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const KINDS = { timeseries: Lines, stat: Stats, bargauge: Bars, "state-timeline": Spans, heatmap: Spans, histogram: Distribution, table: Rows };

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const unit = WIDTH / 24;
  const box = { position: "absolute", left: x * unit, top: y * CELL, width: w * unit - GAP, height: h * CELL - GAP };
  if (panel.type === "row") return <div style={{ ...box, fontSize: 16, fontWeight: 500, paddingTop: 6 }}>⌄ {panel.title}</div>;
  const Kind = KINDS[panel.type];
  return (
    <div style={box}>
      <PanelChrome title={panel.title} description={panel.description} width={box.width} height={box.height}>
        {(width, height) => <Kind panel={panel} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

function Board() {
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * CELL;
  const variables = { cluster: "All", namespace: "All", run: "demo", rank: uid === "stepmem-rank" ? "3" : "All", pod: "All", datasource: "Prometheus" };
  return (
    <ThemeContext.Provider value={theme}>
      <div style={{ background: theme.colors.background.canvas, color: theme.colors.text.primary, fontFamily: theme.typography.fontFamily, fontSize: 14, width: WIDTH, padding: 16 }}>
        <div style={{ fontSize: 20, marginBottom: 10 }}>{dashboard.title}</div>
        <div style={{ display: "flex", gap: 8, marginBottom: 12, fontSize: 12 }}>
          {dashboard.templating.list.filter(({ hide }) => hide !== 2).map(({ name, label }) => (
            <span key={name} style={{ border: `1px solid ${theme.colors.border.medium}`, borderRadius: 3 }}>
              <span style={{ padding: "4px 8px", background: theme.colors.background.secondary }}>{label}</span>
              <span style={{ padding: "4px 8px" }}>{variables[name]} ⌄</span>
            </span>
          ))}
          <span style={{ flex: 1 }} />
          {dashboard.links.map(({ title }) => <span key={title} style={{ color: theme.colors.text.link }}>{title}</span>)}
        </div>
        <div style={{ position: "relative", height: bottom }}>{dashboard.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}</div>
      </div>
    </ThemeContext.Provider>
  );
}

document.body.style.margin = "0";
createRoot(document.getElementById("root")).render(<Board />);
