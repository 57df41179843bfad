"""Random steps of an expert cache on the simulated device, held to the model: python -m tests.bench.cache_steps N."""

from __future__ import annotations

import argparse
import random

from tests.unit.test_cache_machine import live


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=int, help="a million takes about ten minutes")
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    counted = live(random.Random(args.seed), args.steps, (500, 20_000))
    print(f"{args.steps} steps agree: {', '.join(f'{name} {count}' for name, count in counted.items())}")


if __name__ == "__main__":
    main()
