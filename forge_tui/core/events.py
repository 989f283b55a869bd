"""Names of the events that the engine appends and the viewers follow, with what `data` holds."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Every kind of event."""

    STATE = "state"
    """`state`, `text`: the session's state changed."""
    PROFILED = "profiled"
    """`model_ms`, `hotspots`, `targets`: counts; the rows are in the store."""
    TARGET_OPENED = "target_opened"
    """`target`, `usable`, `reason`, `eager_us`."""
    NODE_ADDED = "node_added"
    """`node`, `target`, `parent`, `edge`, `proposer`, `idea`: a candidate exists and is being evaluated."""
    NODE_EVALUATED = "node_evaluated"
    """`node`, `target`, `verdict`, `speedup`, `reason`."""
    NODE_CONFIRMED = "node_confirmed"
    """`node`, `target`, `verdict`, `speedup`, `reason`, `unsanitised`: a winner's file was tried once more."""
    PROPOSAL_FAILED = "proposal_failed"
    """`target`, `edge`, `proposer`, `reason`, `drop`: what a resume needs, null where it cost and counts for nothing;
    `refused`: the node that a request was about which its provider turned down, or nobody; `needed_usd`: what a call
    needed and the budget did not have."""
    LLM_CALL = "llm_call"
    """`model`, `cost_usd`, `tokens`, `state`: a call came back, or did not."""
    PAUSED = "paused"
    """`paused`, `reason`, `level`, `text`: the search waits for a person or a provider, or goes on."""
    DEPLOY_DECISION = "deploy_decision"
    """`target`, `deployed`, `why_not`, `speedup`."""
    DEPLOYED = "deployed"
    """`baseline_ms`, `deployed_ms`, `speedup`."""
    FAILED = "failed"
    """`what`, `hint`, `exit_code`."""
    ISOLATION = "isolation"
    """`isolated`, `short`, `level`, `text`: what keeps compilers and kernels apart from the machine, or why not."""
    LOG = "log"
    """`level` (info, warning, error), `text`."""
