"""The style sheet of a page: light, dark, and on paper."""

from __future__ import annotations

from podracer_client.report.figures.palette import DARK, LIGHT


def style_sheet() -> str:
    """Colours as variables of the two themes; figures take them too."""
    light, dark = (";".join(f"--{name}:{color}" for name, color in theme.items()) for theme in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light dark;{light};--shade:#f3f5f7}}\n"
        f"@media (prefers-color-scheme:dark){{@media not print{{:root{{{dark};--shade:#1e2227}}}}}}\n{_RULES}"
    )


_RULES = """\
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:70rem;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0}
h2{font-size:1.15rem;margin:2.75rem 0 .75rem}
p{margin:.4rem 0;max-width:48rem}
.muted,figcaption,caption,dt,th{color:var(--muted)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1.5rem 0}
.tile{background:var(--shade);border-radius:8px;padding:.7rem .9rem}
.tile strong{display:block;font-size:1.3rem;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--muted);font-size:.85rem;display:block}
.problem{border-left:4px solid var(--bad);background:var(--shade);padding:.6rem 1rem;border-radius:4px}
pre{overflow-x:auto;font:12.5px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
figure{margin:0 0 2rem}
figure svg{display:block;width:100%;height:auto}
figure svg *{stroke-linejoin:round;stroke-linecap:butt}
figure svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif!important}
figcaption,caption{font-size:.87rem;margin:.3rem 0;max-width:52rem;text-align:left}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem;min-width:100%}
th,td{text-align:left;vertical-align:top;padding:.32rem .9rem .32rem 0;border-bottom:1px solid var(--grid)}
th{font-weight:500;white-space:nowrap}
td{white-space:nowrap}
.above td{border-bottom:0}
td[colspan]{color:var(--muted);padding:0 0 .6rem}
.long{white-space:normal;overflow-wrap:anywhere;min-width:11rem}
.number{text-align:right;font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.25rem 1.25rem;margin:0;font-size:.93rem}
dd{margin:0;overflow-wrap:anywhere}
.meter{display:grid;grid-template-columns:8.5rem 1fr 16rem;gap:1rem;align-items:center;margin:.3rem 0;font-size:.9rem}
.bar{display:block;height:.6rem;border-radius:3px;background:var(--grid);overflow:hidden}
.bar span{display:block;height:100%;background:var(--series-1)}
.mark{display:inline-block;width:.65em;height:.65em;border-radius:2px;margin-right:.45em}
details{margin:.5rem 0}
summary{cursor:pointer;color:var(--muted)}
@media (max-width:40rem){.meter{grid-template-columns:1fr}.meter span:last-child{color:var(--muted)}
figure{overflow-x:auto}figure svg{min-width:44rem}}
@media print{body{padding:0;max-width:none;font-size:11px}section,figure,tr{break-inside:avoid}h2{break-after:avoid}
.bar,.tile,.problem,.mark{print-color-adjust:exact;-webkit-print-color-adjust:exact}.wide{overflow:visible}}
"""
