"""What the API server would reject. ``tests/e2e/test_dry_run.py`` asks it about the same manifests."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kubernetes.client import models

from extender.data import facts
from extender.k8s.validation import mistakes
from tests.rejected import ACCEPTED, REJECTED, Object, container, pod


@pytest.mark.parametrize(("manifest", "words"), REJECTED, ids=[words for _, words in REJECTED])
def test_a_mistake_is_named(manifest: Object, words: str) -> None:
    said = [mistake.text for mistake in mistakes(manifest)]
    assert said
    assert words in said[0]


@pytest.mark.parametrize("manifest", ACCEPTED)
def test_nothing_is_wrong_with_what_the_api_server_accepts(manifest: Object) -> None:
    assert [*mistakes(manifest)] == []


def test_an_excerpt_may_lack_fields_that_do_not_place_the_pod() -> None:
    by_words = {words: next(mistakes(manifest)).excerpt for manifest, words in REJECTED}
    assert {words for words, excerpt in by_words.items() if excerpt} == {
        "spec.selector is missing",
        "spec.containers[0].name is missing",
        "restartPolicy must be OnFailure or Never",
    }


def test_fields_of_a_service_that_is_no_pod_template_are_its_own() -> None:
    service = {"apiVersion": "apps.nvidia.com/v1alpha1", "kind": "NIMService", "spec": {"image": {}}}
    service["spec"] |= {"resources": container()["resources"], "replica": 1}
    assert not [*mistakes(service)]


@pytest.mark.parametrize("value", [None, 1, "x", [], [[]], {"a": 1}, True])
def test_any_value_anywhere_is_no_error(value: object) -> None:
    for key in (*pod()["spec"], "tolerations", "affinity", "resources", "volumes", "nodeSelector"):
        [*mistakes(pod(**{key: value}))]
        [*mistakes(pod(containers=[container(**{key: value})]))]
    [*mistakes({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": value, "spec": value})]


def test_the_fields_are_those_of_the_api() -> None:
    """As the client for Python has them, which is generated from the description of the API."""
    known = facts("api-fields")
    fields, required, left = dict[str, Any](), dict[str, Any](), [f"V1{kind}" for kind in known["versions"]]
    while left:
        name = left.pop()
        model, short = getattr(models, name), name.removeprefix("V1")
        if short in fields:
            continue
        fields[short], required[short] = {}, []
        for attribute, key in model.attribute_map.items():
            kind = re.sub(r"^List\[(.*)\]$", r"\1", model.openapi_types[attribute])
            is_read = kind.startswith("V1") and key != "status"
            fields[short][key.lstrip("_")] = kind.removeprefix("V1") * is_read
            left += [kind] * is_read
            names = (attribute, attribute.strip("_"), f"{attribute}_")
            field = next(filter(None, map(model.model_fields.get, names)), None)
            required[short] += [key] * bool(field and field.is_required())
    assert known["fields"] == fields
    assert known["required"] == {name: sorted(keys) for name, keys in required.items() if keys}
