"""Read the Procfile: one `name: command` a line."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROCFILE = ROOT / "Procfile"


def commands(file: Path = PROCFILE) -> dict[str, str]:
    """Give the shell command of every process, in the order of the file."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    named = [line.partition(":") for line in lines]
    return {name.strip(): command.strip() for name, _, command in named}
