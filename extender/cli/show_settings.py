"""``stowage settings``: the effective settings, and the source of each value."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from extender.cli import cluster_args

if TYPE_CHECKING:
    from extender.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the effective settings and the source of each value: the file, an "
    parser.description += "environment variable, or the default. The output is a valid settings file."
    cluster_args.add_config(parser)
    cluster_args.add_output(parser, "yaml", "json")
    text = "print the JSON Schema of the settings file instead"
    parser.add_argument("--schema", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises ``SettingsError``."""
    from extender.settings import API, json_schema
    from extender.settings_file import load_with_origins

    if args.schema:
        print(json.dumps(json_schema(), indent=2))
        return 0
    settings, origins = load_with_origins(args.config, os.environ)
    if args.output == "json":
        shown = {"settings": settings.model_dump(mode="json"), "from": origins}
        print(json.dumps(shown, indent=2))
    else:
        lines = [f"{key}: {value}" for key, value in API.items()]
        for key, value in settings.model_dump(mode="json").items():
            if key == "queues":
                lines += ["queues:  # by name", *_queue_lines(settings, origins)]
            else:
                lines.append(f"{key}: {_flow(value)}  # {origins.get(key, 'default')}")
        print("\n".join(lines))
    return 0


def _queue_lines(settings: Settings, origins: Mapping[str, str]) -> Iterator[str]:
    """The values set in each queue. Removed default queues are null."""
    from extender.settings import DEFAULT_QUEUES

    for name, queue in settings.queues.items():
        place, set_here = f"queues.{name}", queue.model_dump(exclude_defaults=True).keys()
        shown = [key for key in type(queue).model_fields if key in set_here or f"{place}.{key}" in origins]
        yield f"  {name}:{'' if shown else ' {}  # ' + origins.get(place, 'default')}"
        values = queue.model_dump(mode="json")
        for key in shown:
            yield f"    {key}: {_flow(values[key])}  # {origins.get(f'{place}.{key}', 'default')}"
    for name in DEFAULT_QUEUES.keys() - settings.queues.keys():
        yield f"  {name}: null  # {origins.get(f'queues.{name}', 'default')}"


def _flow(value: Any) -> str:  # noqa: ANN401 (what JSON has)
    """One line of JSON, which is valid YAML; whole numbers without a decimal point, and sets sorted."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    is_names = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return json.dumps(sorted(value) if is_names else value)
