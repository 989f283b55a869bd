"""Calls to models under fire: nothing lost, every completed call counted exactly, the budget kept.

Promises, over `--calls` calls of which each request fails with probability `--faults`: every request has its row in the
ledger, written before it was made; completed calls are those that the server counted, token by token; broken ones are
booked within what was set aside, and marked; spent and set aside together never pass `--budget`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ |= {"OPENAI_API_KEY": "none-at-all", "ANTHROPIC_API_KEY": "none-at-all"}

import llm_campaign


def main() -> int:
    """Run the campaign; 1 where something does not add up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--faults", type=float, default=0.3)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(llm_campaign.run(
            Path(folder), calls=asked.calls, faults=asked.faults, parallel=asked.parallel, budget=asked.budget,
            seed=asked.seed,
        ))  # fmt: skip
    print(f"{asked.calls} calls, {found.requests} requests, {found.seconds:.1f} s, at most {found.most_open} at once")
    print(f"calls ended: {dict(found.proposals)}")
    print(f"server: {len(found.completed)} completed, {dict(sorted(found.played.items()))}")
    print(f"rows: {dict(found.states())}")
    exact = sum(row.cost_usd or 0.0 for row in found.rows if row.exact)
    print(f"spent ${found.spent_usd:.4f} (${exact:.4f} by the provider's count, the rest booked), with what was set "
          f"aside at most ${found.highest_usd:.4f} of ${asked.budget:.2f}")  # fmt: skip
    wrong = found.complaints(asked.calls, asked.budget)
    for line in wrong:
        print(f"WRONG: {line}")
    print("everything adds up" if not wrong else f"{len(wrong)} things do not add up")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
