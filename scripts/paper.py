"""Prints the paper's claims and our figures from docs/paper.md; `--quick` runs its quick forms."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "paper.md").read_text()


def rows(last_title: str) -> list[dict[str, str]]:
    """The rows, by title, of the tables whose last column has that title."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE):
        lines = [re.split(r" *\| *", line)[1:-1] for line in table.splitlines()]
        if lines[0][-1] == last_title:
            found += [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    return found


def quick_forms() -> list[str]:
    return re.findall(r"^python .* --quick$", PAGE, re.MULTILINE)


def run_quick_form(line: str) -> None:
    subprocess.run([sys.executable, *shlex.split(line)[1:]], cwd=ROOT, check=True)


if __name__ == "__main__":
    if "--quick" in sys.argv[1:]:
        for form in quick_forms():
            run_quick_form(form)
    else:
        for row in rows("command"):
            (_, claim), *cells = row.items()
            print(claim)
            for title, cell in cells:
                plain = re.sub(r" ?\(\[.*?\]\(.*?\)\)|\]\(.*?\)|[\[*`]", "", cell)
                print(f"    {title.split(':')[0]:9}{plain}")
