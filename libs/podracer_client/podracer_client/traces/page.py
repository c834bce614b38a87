"""The flame view and a timeline as one HTML file without external resources."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from podracer_client.report.html import Markup, element, join, page
from podracer_client.traces.flame import Frame, flame_text
from podracer_client.traces.reading import Trace, TraceSpan

__all__ = ["MOST_SPANS", "trace_page"]

MOST_SPANS = 2000
"""The most spans in the timeline: the longest ones."""

_ABOUT = (
    "Wide is what took long: the seconds of all processes together, those that worked at the same "
    "time one beside the other. Below a frame is what it consists of; click to look closer, click "
    "on what is above to go back."
)
_TIMELINE = "When each process did what. Of the iterations of a round only a few are recorded."


def trace_page(trace: Trace, flame: Frame) -> str:
    """The complete document."""
    shown = _longest(trace.spans)
    left_out = len(trace.spans) - len(shown)
    note = f" The {MOST_SPANS:,} longest spans; {left_out:,} are left out." if left_out else ""
    text = element(
        "details",
        join((element("summary", "the same as text"), element("pre", flame_text(trace, flame)))),
    )
    sections = (
        element("h1", flame.name),
        element("p", f"{trace.seconds:.1f} s from the first span to the last", class_="muted"),
        element("h2", "Where the time went"),
        element("p", _ABOUT),
        element("div", "", id="flame"),
        text,
        element("h2", "When"),
        element("p", _TIMELINE + note),
        element("div", "", id="timeline"),
        element("script", Markup(f"const flame={_json(_flame_data(flame))};")),
        element("script", Markup(f"const lanes={_json(_lanes(trace, shown))};")),
        element("script", Markup(_SCRIPT)),
    )
    return page(f"{trace.job}: where its time went", sections, rules=_RULES)


def _json(value: Any) -> str:
    """JSON for use inside a script: no text in it can end the script."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _flame_data(frame: Frame) -> dict[str, Any]:
    found: dict[str, Any] = {
        "n": frame.name,
        "s": frame.service,
        "t": round(frame.seconds, 6),
        "c": frame.count,
    }
    if frame.is_estimated:
        found["e"] = 1
    if frame.errors:
        found["f"] = frame.errors
    if frame.children:
        found["k"] = [_flame_data(child) for child in frame.children]
    return found


def _longest(spans: Sequence[TraceSpan]) -> Sequence[TraceSpan]:
    if len(spans) <= MOST_SPANS:
        return spans
    longest = sorted(spans, key=lambda one: one.seconds, reverse=True)[:MOST_SPANS]
    return sorted(longest, key=lambda one: one.start_ns)


def _lanes(trace: Trace, shown: Sequence[TraceSpan]) -> list[dict[str, Any]]:
    """A lane for each process, in the order in which they began; its spans in rows, so that none
    covers another."""
    begin_ns, whole_s = trace.spans[0].start_ns, max(trace.seconds, 1e-9)
    by_process: dict[str, list[TraceSpan]] = defaultdict(list)
    for one in shown:
        by_process[one.process].append(one)
    return [
        {
            "name": process,
            "service": spans[0].service,
            "spans": [
                {
                    "n": one.name,
                    "x": round((one.start_ns - begin_ns) / 1e9 / whole_s, 6),
                    "w": round(one.seconds / whole_s, 6),
                    "t": round(one.seconds, 6),
                    "y": row,
                    "f": one.error,
                }
                for one, row in _rows(spans)
            ],
        }
        for process, spans in by_process.items()
    ]


def _rows(spans: Sequence[TraceSpan]) -> Iterator[tuple[TraceSpan, int]]:
    """Each span with the first row that is free when it begins."""
    free_at: list[int] = []
    for one in spans:
        row = next(
            (row for row, end_ns in enumerate(free_at) if end_ns <= one.start_ns), len(free_at)
        )
        free_at[row : row + 1] = [one.end_ns]
        yield one, row


_RULES = """
#flame{position:relative;overflow:hidden;margin:1rem 0}
.frame,.bit{position:absolute;height:1.45rem;overflow:hidden;white-space:nowrap;text-overflow:ellipsis;font-size:.78rem;
line-height:1.45rem;padding:0 .3rem;border:1px solid var(--page);border-radius:3px;color:#14171a;cursor:pointer}
.bit{height:.8rem;line-height:.7rem;font-size:.62rem;padding:0 .15rem;min-width:2px}
.lane{position:relative;border-bottom:1px solid var(--grid)}
.lane>span{display:block;color:var(--muted);font-size:.78rem;padding-top:.2rem}
.lane>div{position:relative}
.failed{outline:2px solid var(--bad);outline-offset:-2px}
.estimated{opacity:.72}
"""

_SCRIPT = """
const colours={"":"#c9cfd6",client:"#c9cfd6",orchestrator:"#8fb8e8",leaderboard:"#b9a3e3",learner:"#f2b36b",
worker:"#8fd0a5",evaluator:"#ef9a9a"};
const colour=service=>colours[service]||"#d5d9a0";
const seconds=t=>t>=100?t.toFixed(0)+" s":t>=1?t.toFixed(2)+" s":(1000*t).toFixed(1)+" ms";
const box=document.getElementById("flame");
function put(node,path,x,width,y,focus){
  const own=document.createElement("div");
  own.className="frame"+(node.e?" estimated":"")+(node.f?" failed":"");
  own.style.left=100*x+"%";own.style.width=100*width+"%";own.style.top=1.5*y+"rem";
  own.style.background=colour(node.s);
  own.textContent=node.n+" "+seconds(node.t);
  own.title=(node.s?node.s+": ":"")+node.n+"\\n"+seconds(node.t)+" ("+(100*node.t/(flame.t||1)).toFixed(1)+" % of all)"
    +(node.c&&!node.e?"\\n"+node.c+" times":"")+(node.e?"\\nin proportion to a few that were looked at":"")
    +(node.f?"\\n"+node.f+" failed":"");
  own.onclick=()=>draw(path);
  box.appendChild(own);
}
function draw(path){
  box.textContent="";
  let depth=0,most=0,node=flame,way=[];
  put(node,[],0,1,depth++);
  for(const index of path){way=way.concat(index);node=node.k[index];put(node,way,0,1,depth++);}
  (function below(parent,way,x,width,y){
    most=Math.max(most,y);
    let at=x;
    (parent.k||[]).forEach((child,index)=>{
      const share=width*child.t/(parent.t||1);
      if(share>.0008){put(child,way.concat(index),at,share,y);below(child,way.concat(index),at,share,y+1);}
      at+=share;
    });
  })(node,path,0,1,depth);
  box.style.height=1.5*(most+1)+"rem";
}
draw([]);
const all=document.getElementById("timeline");
for(const lane of lanes){
  const own=document.createElement("div");own.className="lane";
  const name=document.createElement("span");name.textContent=lane.name;own.appendChild(name);
  const room=document.createElement("div");let rows=0;
  for(const one of lane.spans){
    const bit=document.createElement("div");bit.className="bit"+(one.f?" failed":"");
    bit.style.left=100*one.x+"%";bit.style.width=100*one.w+"%";bit.style.top=.85*one.y+"rem";
    bit.style.background=colour(lane.service);bit.textContent=one.w>.03?one.n:"";
    bit.title=one.n+"\\n"+seconds(one.t)+(one.f?"\\n"+one.f:"");
    room.appendChild(bit);rows=Math.max(rows,one.y+1);
  }
  room.style.height=.85*rows+.3+"rem";own.appendChild(room);all.appendChild(own);
}
"""
