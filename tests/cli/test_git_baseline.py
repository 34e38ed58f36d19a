"""With a ``git:`` baseline a change judges itself by the rules of the commit, whatever it does to them."""

import json
import subprocess

import pytest

from gates.cli.commits import open_commit
from gates.cli.gate_request import GateOptions, build_request
from gates.cli.inputs import current_project
from gates.policy import default_policy, parse_policy
from replay.errors import SpecError

LOOSE = 'allow_synthetic = true\n[blocking]\nttft_s = { p95 = "900 %" }\n'
OPTIONS = {
    "traces": (), "model": None, "hardware": (), "policy": None, "owners": None, "archive": None, "as_of": None,
    "seed": None, "jobs": 1, "measurements": (),
}  # fmt: skip


def git(folder, *arguments):
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def committed(project):
    """The demo as a repository whose commit also holds a policy that nobody uses, and a CODEOWNERS."""
    (project.folder / "experiments").mkdir()
    project.write("experiments/loose.toml", LOOSE)
    project.write("CODEOWNERS", "* @before\n")
    git(project.folder, "init", "-q", "-b", "main")
    git(project.folder, "add", "-A")
    git(project.folder, "commit", "-q", "-m", "in service")
    return project


def asked(*, baseline="git:main", candidate=None, **options):
    arms = {name: () if source is None else (source,) for name, source in (("baseline", baseline), ("candidate", candidate))}
    return build_request(GateOptions(**(OPTIONS | options), **arms), current_project())


def codes(request):
    return [finding.code for finding in request.findings]


def edit(project, name, old, new):
    text = project.read(name)
    assert old in text
    project.write(name, text.replace(old, new))


def strict(project):
    return parse_policy(git(project.folder, "show", "main:policy.toml"), "policy.toml")


def test_an_unchanged_project_says_nothing(committed):
    request = asked()
    assert (request.policy_name, request.owners_name, codes(request)) == ("git:main:policy.toml", "git:main:owners.toml", [])


LOOSENINGS = {
    "another policy named": lambda project: edit(project, "replay.toml", '"policy.toml"', '"experiments/loose.toml"'),
    "the policy rewritten": lambda project: project.write("policy.toml", LOOSE),
    "the policy broken": lambda project: project.write("policy.toml", "nonsense"),
    "the policy removed": lambda project: (project.folder / "policy.toml").unlink(),
    "no policy named": lambda project: edit(project, "replay.toml", 'policy = "policy.toml"\n', ""),
    "the policy replaced by a link": lambda project: (
        (project.folder / "policy.toml").unlink(),
        (project.folder / "policy.toml").symlink_to("experiments/loose.toml"),
    ),
}


@pytest.mark.parametrize("loosen", LOOSENINGS.values(), ids=LOOSENINGS)
def test_no_change_of_the_policy_reaches_its_own_gate(committed, loosen):
    loosen(committed)
    request = asked()
    assert request.policy == strict(committed)
    assert codes(request) == ["policy_changed"]


def test_a_folder_that_becomes_a_link_is_not_followed(committed):
    (committed.folder / "rules").mkdir()
    committed.write("rules/loose.toml", committed.read("policy.toml"))
    edit(committed, "replay.toml", '"policy.toml"', '"rules/loose.toml"')
    git(committed.folder, "add", "-A")
    git(committed.folder, "commit", "-q", "-m", "rules have a folder")
    (committed.folder / "rules/loose.toml").unlink()
    (committed.folder / "rules").rmdir()
    (committed.folder / "rules").symlink_to("experiments")
    request = asked()
    assert request.policy == strict(committed)
    assert codes(request) == ["policy_changed"]


def test_the_gate_runs_from_outside_the_repository_too(committed, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "linked").symlink_to(committed.folder)
    for folder in (committed.folder, tmp_path / "linked"):
        request = asked(candidate=str(folder / "mapping.candidate.toml"))
        assert request.baseline.mapping.digest == request.candidate.mapping.digest
        assert request.policy == default_policy()


def test_a_policy_that_only_moves_is_said(committed):
    (committed.folder / "policy.toml").rename(committed.folder / "rules.toml")
    edit(committed, "replay.toml", '"policy.toml"', '"rules.toml"')
    assert codes(asked()) == ["policy_changed"]


def test_a_new_project_file_is_judged_by_the_shipped_policy(committed):
    git(committed.folder, "rm", "-q", "--cached", "replay.toml")
    git(committed.folder, "commit", "-q", "-m", "without a project")
    request = asked()
    assert (request.policy, request.policy_name) == (default_policy(), "default policy")
    assert set(codes(request)) == {"policy_changed", "owners_changed", "project_changed"}


def test_a_nearer_project_file_does_not_shadow_that_of_the_commit(committed, monkeypatch):
    below = committed.folder / "below"
    below.mkdir()
    text = committed.read("replay.toml").replace('policy = "policy.toml"', 'policy = "../experiments/loose.toml"')
    for name in ("trace.parquet", "mapping.toml", "mapping.candidate.toml", "owners.toml", "selfcheck.json"):
        text = text.replace(f'"{name}"', f'"../{name}"')
    (below / "replay.toml").write_text(text)
    monkeypatch.chdir(below)
    request = asked()
    assert request.policy == strict(committed)
    assert "policy_changed" in codes(request)


def test_an_explicit_policy_is_used_and_said(committed):
    request = asked(policy="experiments/loose.toml")
    assert request.policy == parse_policy(LOOSE, "loose.toml")
    assert codes(request) == ["policy_changed"]
    assert codes(asked(policy="policy.toml")) == []


def test_a_policy_outside_the_repository_is_part_of_no_change(committed, tmp_path):
    outside = tmp_path / "company.toml"
    outside.write_text(LOOSE)
    edit(committed, "replay.toml", '"policy.toml"', f'"{outside}"')
    git(committed.folder, "commit", "-q", "-a", "-m", "the company's policy")
    request = asked()
    assert (request.policy, codes(request)) == (parse_policy(LOOSE, "company.toml"), [])


OWNER_CHANGES = {
    "owners rewritten": lambda project: edit(project, "owners.toml", "decode-kernels", "somebody-else"),
    "owners broken": lambda project: project.write("owners.toml", "nonsense"),
    "no owners named": lambda project: edit(project, "replay.toml", 'owners = "owners.toml"\n', ""),
    "CODEOWNERS rewritten": lambda project: project.write("CODEOWNERS", "* @after\n"),
    "a CODEOWNERS of higher rank": lambda project: (
        (project.folder / ".github").mkdir(),
        project.write(".github/CODEOWNERS", "* @after\n"),
    ),
}


@pytest.mark.parametrize("change", OWNER_CHANGES.values(), ids=OWNER_CHANGES)
def test_no_change_of_owners_reaches_its_own_gate(committed, change):
    change(committed)
    request = asked()
    assert request.owners.of("gemm.tile@decode").owner == "decode-kernels"
    assert request.owners.fallback.owner == "@before"
    assert codes(request) == ["owners_changed"]


def test_moved_lines_of_the_owners_change_nobody(committed):
    project = committed
    project.write("owners.toml", "# a remark\n\n" + project.read("owners.toml"))
    assert codes(asked()) == []


def test_owners_that_the_commit_lacks_are_not_taken_from_the_work_tree(committed):
    git(committed.folder, "rm", "-q", "--cached", "owners.toml", "CODEOWNERS")
    git(committed.folder, "commit", "-q", "-m", "without owners")
    request = asked()
    assert (request.owners.of("gemm.tile").owner, request.owners_name) == ("unowned", None)
    assert codes(request) == ["owners_changed"]


def test_explicit_owners_are_used_and_said(committed):
    committed.write("new.toml", committed.read("owners.toml").replace("decode-kernels", "somebody-else"))
    request = asked(owners="new.toml")
    assert request.owners.of("gemm.tile@decode").owner == "somebody-else"
    assert codes(request) == ["owners_changed"]


def test_a_change_of_the_load_is_said_unless_the_command_line_gives_it(committed):
    edit(committed, "replay.toml", "seed = 0", "seed = 12")
    request = asked()
    assert (request.seed, codes(request)) == (12, ["project_changed"])
    assert "in seed" in request.findings[0].message
    assert codes(asked(seed=12)) == []


def test_the_baseline_is_the_mapping_that_the_project_named_at_the_commit(committed):
    edit(committed, "replay.toml", 'mapping = "mapping.candidate.toml"', 'mapping = "mapping.toml"')
    request = asked()
    assert request.baseline.label == "git:main:mapping.candidate.toml"
    assert request.candidate.label == "mapping.toml"
    assert asked(candidate="mapping.toml").baseline.label == "git:main:mapping.toml"


def test_the_one_line_change_to_a_looser_policy_is_a_rollback_that_says_so(committed):
    committed.write("mapping.candidate.toml", committed.read("mapping.toml"))
    git(committed.folder, "commit", "-q", "-a", "-m", "as in service")
    edit(committed, "mapping.candidate.toml", '"tile@decode" = [64, 64, 64]', '"tile@decode" = [256, 128, 64]')
    edit(committed, "replay.toml", '"policy.toml"', '"experiments/loose.toml"')
    result = committed.replay("gate", "--baseline", "git:main", "--format", "json")
    assert result.exit_code == 10
    assert "policy_changed" in {reason["code"] for reason in json.loads(result.stdout)["predicate"]["reasons"]}


def test_rules_that_match_nothing_are_said(committed):
    committed.write("owners.toml", committed.read("owners.toml") + '\n[[rules]]\nmatch = "gemm.tlie"\nteam = "t"\n')
    committed.write("CODEOWNERS", "* @before\n!x @team\n")
    request = asked(baseline="mapping.toml")
    assert codes(request) == ["owners_rule_matches_nothing"] * 2
    assert "gemm.tlie" in request.findings[0].message
    assert request.findings[1].message.startswith("CODEOWNERS:2: ")


@pytest.mark.parametrize(
    ("source", "says"), [("git:nowhere", "want a commit"), ("git:", "names no commit"), ("git:--help", "names no commit")]
)
def test_a_ref_that_is_no_commit_is_one_sentence(committed, source, says):
    with pytest.raises(SpecError, match=says):
        open_commit(committed.folder, source)


def test_a_file_at_a_commit_is_a_file_and_no_folder(committed):
    commit = open_commit(committed.folder, "git:main")
    assert commit.text(committed.folder / "experiments/loose.toml") == LOOSE
    assert commit.text(committed.folder / "experiments") is None
    assert commit.text(committed.folder / "gone/away.toml") is None


def test_each_line_names_the_commit_that_changed_it_and_none_while_it_is_not_committed(committed):
    git(committed.folder, "branch", "service")
    committed.write("mapping.candidate.toml", committed.read("mapping.toml") + '\n[placement]\nweights = "host"\n')
    git(committed.folder, "commit", "-q", "-a", "-m", "Keep weights: in host memory")
    place = len(committed.read("mapping.candidate.toml").splitlines())
    commit = git(committed.folder, "rev-parse", "--short=10", "HEAD").strip()
    assert asked(baseline="git:service").candidate.commits[place] == f"{commit} Keep weights: in host memory"
    committed.write("mapping.candidate.toml", committed.read("mapping.candidate.toml") + "copy_overlap = false\n")
    commits = asked(baseline="git:service").candidate.commits
    assert (commits[place].split()[0], place + 1 in commits) == (commit, False)
    assert asked(baseline="mapping.toml").candidate.commits == {}
    assert asked(baseline="git:service", candidate="git:main").candidate.commits == {}
    found = json.loads(committed.replay("gate", "--baseline", "git:service", "--format", "json").stdout)["predicate"]
    assert {row["knob"]: row["commit"] for row in found["knobs"]}["placement.weights"] == f"{commit} Keep weights: in host memory"
