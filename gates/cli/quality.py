"""`replay quality`: what a mapping's number formats do to a model's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gates.cli.inputs import chosen_mapping, current_project
from gates.cli.progress import note
from replay.errors import SpecError

if TYPE_CHECKING:
    from gates.cli.arms import ArmSource
    from replay.quality.report import ProbeRun
    from replay.specs.mapping import MappingSpec


@click.command("quality")
@click.option("--mapping", metavar="FILE", help="Mapping whose formats are tried (default: the project's).")
@click.option("--baseline", metavar="FILE", help="Mapping to compare with (default: the weights as they are, in float32).")
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help="Folder with config.json and safetensors, a GGUF file, or an .npz of a recurrent model.",
)
@click.option("--probes", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Prompts: token ids, or texts (JSON Lines).")
@click.option("--hardware", metavar="NAME", help="Accelerator whose settings apply, where a mapping has some for one.")
@click.option("--answer-tokens", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens of each greedy answer.")
@click.option(
    "--attribution-tokens",
    type=click.IntRange(min=0),
    default=256,
    show_default=True,
    help="Tokens of the first probes on which each format is undone alone; 0 for none.",
)
@click.option("--batch-invariance", is_flag=True, help="Answer every probe alone, too: do answers depend on the batch?")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for the report and for the evidence of `replay gate`.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    mapping: str | None,
    baseline: str | None,
    weights: Path,
    probes: Path,
    hardware: str | None,
    answer_tokens: int,
    attribution_tokens: int,
    batch_invariance: bool,
    out: Path | None,
    form: str,
) -> None:
    """Run a model's own weights under a mapping's number formats and measure the drift of its answers.

    Formats are emulated value by value, for the layer types that the mapping's scopes name: weights, activations, key-value cache, sums.
    With --out, baseline.jsonl and candidate.jsonl are evidence for `replay gate --quality-baseline --quality-candidate`.
    """
    from replay.documents import pretty_json
    from replay.folders import check_folder, write_folder
    from replay.quality.report import BASELINE, CANDIDATE, REPORT, evidence_lines, report_document

    if out is not None:
        check_folder(out, what="a quality report", listed=_listed)
    run = _probe(mapping, baseline, weights, probes, hardware, answer_tokens, attribution_tokens, batch_invariance)
    report = report_document(run)
    if out is not None:
        before, after = evidence_lines(run)
        contents = {REPORT: pretty_json(report).encode(), BASELINE: before.encode(), CANDIDATE: after.encode()}
        write_folder(out, contents, what="a quality report", listed=_listed)
    click.echo(pretty_json(report) if form == "json" else "\n".join(_text(report)) + "\n", nl=False)


def _probe(
    mapping: str | None,
    baseline: str | None,
    weights: Path,
    probes: Path,
    hardware: str | None,
    answer_tokens: int,
    attribution_tokens: int,
    batch_invariance: bool,
) -> ProbeRun:
    from replay.quality.models import model_of
    from replay.quality.numerics import Numerics
    from replay.quality.probe import run_probes
    from replay.quality.probes import check_fit, read_probes
    from replay.quality.report import ProbeRun
    from replay.quality.weights.checkpoint import read_checkpoint

    project = current_project()
    after = _on(hardware, chosen_mapping(mapping, project))
    before = _on(hardware, chosen_mapping(baseline, None)) if baseline is not None else None
    note(f"reading {weights}")
    checkpoint = read_checkpoint(weights)
    asked = read_probes(probes, checkpoint.tokenizer)
    model = model_of(checkpoint)
    check_fit(asked, model, answer_tokens)
    sixteen_bit = checkpoint.sixteen_bit
    probed = run_probes(
        model,
        Numerics.exact() if before is None else Numerics.of(before, sixteen_bit),
        Numerics.of(after, sixteen_bit),
        asked.probes,
        answer_tokens=answer_tokens,
        attribution_tokens=attribution_tokens,
        batch_invariance=batch_invariance,
        progress=note,
    )
    return ProbeRun(
        weights_name=weights.name,
        checkpoint=checkpoint,
        probes=asked,
        baseline=("float32", None) if before is None else (before.name, before.digest),
        candidate=(after.name, after.digest),
        answer_tokens=answer_tokens,
        probed=probed,
    )


def _on(hardware: str | None, arm: ArmSource) -> MappingSpec:
    """Return a mapping as it applies to an accelerator.

    Raises:
        SpecError: it has settings of numbers for some accelerator, and none is named.
    """
    from replay.quality.numerics import KNOB_OF

    bound = [setting for setting in arm.mapping.settings if setting.scope.chip is not None and setting.name in KNOB_OF.values()]
    if bound and hardware is None:
        got = f"{bound[0].knob} holds for one accelerator"
        raise SpecError(arm.label, got, "the accelerator whose numbers are meant", f"add --hardware {bound[0].scope.chip}")
    return arm.mapping if hardware is None else arm.mapping.on(hardware)


def _listed(folder: Path) -> frozenset[str] | None:
    from replay.quality.report import BASELINE, CANDIDATE, REPORT, SCHEMA

    try:
        document = json.loads((folder / REPORT).read_bytes())
    except (OSError, ValueError):
        return None
    return frozenset({REPORT, BASELINE, CANDIDATE}) if isinstance(document, dict) and document.get("schema_version") == SCHEMA else None


def _text(report: dict[str, Any]) -> list[str]:
    overall = report["overall"]
    lines = [
        f"{report['candidate']['name']} against {report['baseline']['name']} on {report['weights']['name']}: "
        f"{overall['items']} probes, {overall['predictions']} predictions",
        "",
        f"{'':24} {'probes':>7} {'KL mean':>9} {'p99':>9} {'largest':>9} {'top 1':>7} {'NLL +':>8} {'same':>6} {'cosine':>7}",
        _figures_line("all", overall),
    ]
    for row in report["by_prompt_bin"]:
        name = f"from {row['tokens_from']}" if row["tokens_to"] is None else f"{row['tokens_from']} to {row['tokens_to'] - 1}"
        if row["figures"] is not None:
            lines.append(_figures_line(f"{name} tokens", row["figures"]))
    floor = report["floor"]
    lines += [f"{'floor (another order)':24} {'':7} {_number(floor['kl_mean_nats'])} {'':9} {_number(floor['kl_max_nats'])}", ""]
    invariance = report["batch_invariance"]
    if invariance is not None:
        shares = f"{invariance['baseline_ratio']:.0%} of the baseline's, {invariance['candidate_ratio']:.0%} of the candidate's"
        lines += [f"answers that do not depend on the batch: {shares}", ""]
    lines += _layers(report) + _reverts(report)
    lines += [f"finding: {finding['message']}" for finding in report["findings"]]
    return lines + [f"note: {limit}" for limit in report["limits"]]


def _layers(report: dict[str, Any]) -> list[str]:
    rows = [
        f"{row['layer_type']:14} {_number(row['relative_error'])} {_decibels(row['sqnr_db'])}  worst {row['worst']}"
        for row in report["layers"]
    ]
    return [f"{'layer type':14} {'error':>9} {'SQNR':>10}", *rows, ""] if rows else []


def _reverts(report: dict[str, Any]) -> list[str]:
    rows = [
        f"{row['knob'] + ' of ' + row['layer_type']:44} {row['candidate']:>9} -> {row['baseline']:9} {_number(row['kl_mean_nats_left'])}"
        for row in report["reverts"]
    ]
    whole = report["attributed"]
    title = f"{'undone alone, on the first ' + str(whole['items']) + ' probes':44} {'':22} {'KL left':>9}"
    return [title, f"{'nothing undone':44} {'':22} {_number(whole['kl_mean_nats'])}", *rows, ""] if rows else []


def _figures_line(name: str, row: dict[str, Any]) -> str:
    cells = [_number(row[key]) for key in ("kl_mean_nats", "kl_p99_nats", "kl_max_nats")]
    change = "-" if row["nll_change_nats_per_token"] is None else f"{row['nll_change_nats_per_token']:+.4f}"
    cosine = "-" if row["embedding_cosine_mean"] is None else f"{row['embedding_cosine_mean']:.4f}"
    shares = f"{row['top1_agreement_ratio']:7.1%} {change:>8} {row['answers_equal_ratio']:6.0%} {cosine:>7}"
    return f"{name:24} {row['items']:>7} {' '.join(cells)} {shares}"


def _number(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.3g'):>9}"


def _decibels(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.1f') + ' dB':>10}"
