"""An OpenTelemetry collector in a container: every span that it receives is a line of
/tmp/spans.jsonl."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.otlp_collector import otlp_collector

FILE = Path("/tmp/spans.jsonl")


def main() -> None:
    written = 0
    with otlp_collector("0.0.0.0:4317") as collector, FILE.open("w") as file:
        while True:
            spans: list[Any] = collector.spans
            for span in spans[written:]:
                file.write(json.dumps(asdict(span)) + "\n")
            file.flush()
            written = len(spans)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
