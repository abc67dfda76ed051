"""The report of a drill as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from html import escape

from shoal.drill.kinds import KINDS
from shoal.drill.picture import draw, icon
from shoal.drill.report import Report
from shoal.drill.rows import fault_rows, run_rows
from shoal.drill.timeline import Timeline

_STYLE = """
:root{color-scheme:light dark;--paper:#fbfbfa;--card:#fff;--ink:#1c2430;--soft:#5d6878;--line:#e3e6ea;--good:#0f7b4f;
--bad:#c02633;--warn:#9a6200;--mark:#c02633;--w0:#3c7dc4;--w1:#2a9d8f;--w2:#8a6fc9;--w3:#c7872e;--hold:#1c2430}
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--card:#1a2029;--ink:#e7ebf0;--soft:#9aa6b5;--line:#2c3541;
--good:#4fc38d;--bad:#ff7480;--warn:#e7b458;--mark:#ff5f6d;--w0:#5b9bdf;--w1:#45b8a9;--w2:#a68fe0;--w3:#dca04c;
--hold:#0b0e12}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 24px 48px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}h2{font-size:17px;margin:36px 0 10px}
p{margin:0 0 8px}
.note{margin-top:10px;font-size:13px}.soft{color:var(--soft)}
code{font:13px ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.laws{display:grid;grid-template-columns:repeat(auto-fit,minmax(235px,1fr));gap:12px;margin-top:20px}
.law{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--good);border-radius:8px;
padding:12px 14px}
.law.broken{border-left-color:var(--bad)}.law b{display:block}.law span{display:block;font-size:13px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow-x:auto}
.card>svg{display:block;min-width:720px;width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{font-weight:600;font-size:13px;color:var(--soft);text-align:left}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}td.n,th.n{text-align:right;white-space:nowrap}td:first-child{white-space:nowrap}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;margin:10px 0 0;font-size:13px;color:var(--soft)}
.legend span{display:inline-flex;align-items:center;gap:6px}
.icon{width:18px;height:18px;vertical-align:-4px;flex:none}
.swatch{display:inline-block;width:22px;height:10px;border-radius:3px}
.w0{fill:var(--w0);background:var(--w0)}.w1{fill:var(--w1)}.w2{fill:var(--w2)}.w3{fill:var(--w3)}
.waits{opacity:.45}.grid{stroke:var(--line)}.base{stroke:var(--soft);opacity:.4}
.view{stroke:var(--soft);stroke-dasharray:2 3;opacity:.8}
.tick{fill:var(--soft);font-size:11px}.label{fill:var(--ink);font-size:12.5px}
.pause{fill:var(--warn);opacity:.13}.swatch.pause{background:var(--warn);opacity:.3}
.held{fill:var(--hold);opacity:.45}.swatch.held{background:var(--hold);opacity:.45;outline:1px solid var(--soft)}
.keeps{stroke:var(--soft);stroke-width:3}.away{fill:var(--card);stroke:var(--mark)}
.fault circle{fill:var(--mark);stroke:var(--card);stroke-width:1.5}
.fault path{fill:none;stroke:var(--card);stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}
.when{stroke:var(--mark);opacity:.35}
.calm{fill:none;stroke:var(--soft);stroke-width:5;opacity:.45;stroke-linejoin:round}
.hurt{fill:none;stroke:var(--w0);stroke-width:1.6;stroke-linejoin:round}
.swatch.calm{background:var(--soft);opacity:.45}.swatch.hurt{background:var(--w0);height:3px}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;overflow-x:auto;font-size:12.5px}
"""


def page(report: Report, line: Timeline) -> str:
    """The whole page."""
    tone = "bad" if report.broken else "warn" if report.missed else "good"
    title = {"good": "All laws held", "warn": "No law broken, but not all faults came", "bad": "A law was broken"}[tone]
    sections = [
        f'<h1 class="{tone}">{title}</h1>',
        f"<p>{escape(_gist(report, tone))}</p>",
        f'<p class="soft"><code>{escape(report.command)}</code></p>',
        _laws(report),
        "<h2>What happened</h2>",
        f'<div class="card">{draw(line, report)}{_legend(report)}</div>',
        *(f'<p class="soft note">{escape(note)}</p>' for note in report.notes),
        "<h2>Faults</h2>",
        _faults(report),
        "<h2>Side by side</h2>",
        _runs(report),
    ]
    if report.hurt_log:
        sections += ["<h2>The last words of the hurt run</h2>", f"<pre>{escape(report.hurt_log)}</pre>"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Drill: {escape(report.script)} - {title}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _gist(report: Report, tone: str) -> str:
    """The drill in a sentence."""
    if tone != "good":
        return f"{report.verdict()}."
    kinds = len({fault.kind for fault in report.faults})
    pauses = [fault.pause_s for fault in report.faults if fault.pause_s is not None]
    return (
        f"{len(report.faults)} faults of {kinds} kind{'s' if kinds > 1 else ''} over {report.hurt.steps} steps. "
        f"Longest pause {max(pauses, default=0.0):.2f} s, {report.hurt.lost_steps} steps done twice, every sample "
        "exactly once."
    )


def _laws(report: Report) -> str:
    cards = [
        f'<div class="law{"" if law.held else " broken"}"><b>{"&#10003;" if law.held else "&#10007;"} '
        f"{escape(law.name)}</b><span>{escape(law.measured)}</span>"
        f'<span class="soft">{escape(law.allowed)}</span></div>'
        for law in report.laws
    ]
    return f'<div class="laws">{"".join(cards)}</div>'


def _legend(report: Report) -> str:
    kinds = [kind for kind in KINDS if any(fault.kind == kind for fault in report.faults)]
    entries = [f"<span>{icon(kind)}{kind}</span>" for kind in kinds]
    for swatch, words in (
        ("w0", "a worker in a view (its colour changes with the process)"),
        ("held", "held"),
        ("pause", "no step committed"),
        ("hurt", "loss, hurt"),
        ("calm", "loss, calm"),
    ):
        entries.append(f'<span><i class="swatch {swatch}"></i>{words}</span>')
    return f'<div class="legend">{"".join(entries)}</div>'


def _faults(report: Report) -> str:
    head, *rows = fault_rows(report)
    body = []
    for fault, row in zip(report.faults, rows, strict=True):
        first, *rest = row
        cells = "".join(_cell(words, at) for at, words in enumerate(rest, start=1))
        body.append(f"<tr><td>{icon(fault.kind)} {escape(first)}</td>{cells}</tr>")
    return _table(head, body)


def _runs(report: Report) -> str:
    head, *rows = run_rows(report)
    body = [
        f"<tr><td>{escape(name)}</td><td>{escape(calm)}</td><td>{escape(hurt)}</td></tr>" for name, calm, hurt in rows
    ]
    return _table(head, body, numbers=False)


def _cell(words: str, at: int) -> str:
    return f"<td{' class=n' if 2 <= at <= 4 else ''}>{escape(words)}</td>"


def _table(head: tuple[str, ...], body: list[str], numbers: bool = True) -> str:
    names = "".join(
        f"<th{' class=n' if numbers and 2 <= at <= 4 else ''}>{escape(name)}</th>" for at, name in enumerate(head)
    )
    return f'<div class="card"><table><tr>{names}</tr>{"".join(body)}</table></div>'
