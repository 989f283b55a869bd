"""The search over every target of a session: what to do next, and what is known so far.

Plain Python without clock or randomness: the same configuration and the same replies give the same steps, and a
search restored from its nodes goes on like one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from forge_tui.core.ports import Task
from forge_tui.core.records import Device, Edge, Evaluation, Node, Target, Verdict
from forge_tui.search.allocation import Outlook, bonus_scale
from forge_tui.search.config import Drop, Found, SearchConfig, Step, Stop
from forge_tui.search.experience import TEMPLATES, Experience
from forge_tui.search.purse import FREE, PERSON, Purse
from forge_tui.search.tree import NodeStats, TargetTree
from forge_tui.search.wishes import Wishes

__all__ = ["Drop", "Found", "NodeStats", "Search", "SearchConfig", "Step", "Stop"]

Can = Callable[[Step], bool]


class Search:
    """Decides steps and folds in what became of them.

    The caller asks `next_step`, and ends every step by `begin` and later `finish`, or by `drop`.
    """

    def __init__(
        self, config: SearchConfig, targets: Sequence[Target], found: Mapping[str, Sequence[Found]] | None = None
    ) -> None:
        """`found` has kernels of earlier sessions by target, the most promising first."""
        self.config = config
        self._trees = {t.id: TargetTree(t, config.explore, partial(bonus_scale, t, config)) for t in targets}
        self._owner: dict[int, TargetTree] = {}
        self._experience = Experience()
        self._outlooks: dict[str, tuple[tuple[int, float], Outlook]] = {}
        # (content, what proposers said no to), and the moment at which nothing could be done at a target
        self._refused: dict[str, tuple[int, set[tuple[Edge, int | None, int | None, str]]]] = {}
        self._idle: dict[str, int] = {}
        self.purse = Purse(config, self._experience)
        self._wishes = Wishes(config, self._trees, self._experience, found or {})
        #: evaluations that models used before they answered
        self._aside = 0
        self._room = 0
        # what a step that there is no money for may cost; 0 where nobody knows it
        self._short: float | None = None

    # ---- deciding

    def next_step(self, can: Can) -> Step | Stop | None:
        """The next thing to do; None while only what is in flight can bring news.

        `can` says whether the step's proposer could do it now; where it cannot, the next best option is taken. What
        waits for a person is in nobody's way; it is waited for while its answer could be of use.
        """
        if not self._trees:
            return Stop(reason="No target has enough headroom to search.")
        waiting = sum(map(self._waiting, self._trees.values()))
        flying = sum(tree.in_flight for tree in self._trees.values()) > waiting
        if self.full:
            most = self.config.max_evaluations
            reason = "The only evaluation is used up." if most == 1 else f"All {most} evaluations are used up."
            return None if flying else Stop(reason=reason)
        if self.purse.broke:
            return None if flying else Stop(reason=self.purse.why_broke(None))
        self._short = None
        left = self._left_usd()
        for tree in self._ranked():
            step = self._step_for(tree, can, left)
            if step is not None:
                self._reserve(tree, step)
                return step
            if self._short is None:
                self._idle[tree.target.id] = self._moment
        if flying or any(self._waiting(tree) and not self._outlook(tree).closed() for tree in self._trees.values()):
            return None
        return Stop(reason=self._why_over() if self._short is None else self.purse.why_broke(self._short))

    @property
    def full(self) -> bool:
        """Whether every evaluation is used up or promised to somebody who does not wait for a person."""
        return self._at_work >= self.config.max_evaluations

    @property
    def overfull(self) -> bool:
        """Whether more than that is promised, as a resume may have been given fewer."""
        return self._at_work > self.config.max_evaluations

    def pay(self, usd: float) -> None:
        """A model call cost so much, whatever came of it."""
        self.purse.paid_usd += usd

    def rent(self, usd: float) -> None:
        """What the machine has cost since the session began."""
        self.purse.rent_usd = usd

    def expect(self, proposer: str, usd: float) -> None:
        """A call of this proposer may cost so much at most; the dearest one so far is what its next one is held at."""
        self.purse.expect(proposer, usd)

    def ask_again(self) -> None:
        """Who said no may say yes now: proposers came back."""
        self._refused.clear()
        self._idle.clear()

    def start_step(self, target_id: str) -> Step:
        """The step under which a person's own kernel begins; not to be waited for by `next_step`."""
        tree = self._trees[target_id]
        return self._wishes.step(tree, Edge.START, None, PERSON)

    # ---- what became of steps

    def begin(self, step: Step, node: Node) -> None:
        """The step has a source: its node is in flight."""
        tree = self._trees[step.target_id]
        self._release(tree, step)
        self._add(tree, node)

    def finish(self, node_id: int, evaluation: Evaluation) -> None:
        """A node's verdict; a second one for the same node is ignored, a failure of ours undoes the attempt."""
        tree = self._owner.get(node_id)
        if tree is None or node_id not in tree.flying:
            return
        before = tree.node(node_id)
        node = tree.settle(node_id, evaluation)
        if node is None:
            self._experience.undo(before)
            del self._owner[node_id]
            return
        value = tree.value(node_id)
        parent = tree.value(node.parent) if node.parent is not None else None
        self._experience.end(node.proposer, node.edge, value=value, before=parent)
        if node.edge is Edge.REPAIR:
            self._end_repair(tree, node.repairs, node.proposer, right=value is not None)

    def drop(self, step: Step, reason: str, *, infra: bool = False, cost_usd: float = 0.0) -> Drop | None:
        """The step brought no source. It counts as an attempt unless the fault was ours or a provider's.

        `cost_usd` is what its calls cost all the same. Returns what `restore` needs to know of it, or None.
        """
        tree = self._trees[step.target_id]
        self._release(tree, step)
        if infra and not cost_usd:
            return None
        drop = Drop(step=step, after=tree.ids[-1] if tree.ids else -1, reason=reason, cost_usd=cost_usd, infra=infra)
        self._fold_drop(tree, drop)
        return drop

    def withdraw(self, step: Step) -> None:
        """The step is not gone on with, as if it had never been decided."""
        self._release(self._trees[step.target_id], step)

    def restore(self, nodes: Iterable[Node], drops: Iterable[Drop] = (), steps: Iterable[Step] = ()) -> None:
        """Take in the nodes of an interrupted search, those in flight included, in any order.

        `steps` are those that were decided and had not begun; the caller goes on with them.
        """
        for node in sorted(nodes, key=lambda n: n.id):
            tree = self._trees.get(node.target_id)
            if tree is None:
                continue
            if node.evaluation is not None and node.evaluation.verdict is Verdict.INFRA:
                self._experience.pay(node.proposer, node.edge, node.cost_usd, counts=False)
                continue
            self._add(tree, node)
            if node.evaluation is not None:
                self.finish(node.id, node.evaluation)
        for drop in drops:
            if drop.step.target_id in self._trees:
                self._fold_drop(self._trees[drop.step.target_id], drop)
        for step in steps:
            self._reserve(self._trees[step.target_id], step)

    # ---- looking

    def best(self, target_id: str) -> Node | None:
        """The fastest node whose whole interval is above 1, else the best right one, else None."""
        return self._trees[target_id].best

    def task(self, step: Step, device: Device) -> Task:
        """The request that a step makes to its proposer."""
        tree = self._trees[step.target_id]
        return Task(
            target=tree.target, device=device, edge=step.edge,
            parent=tree.node(step.parent) if step.parent is not None else None,
            failed=tree.node(step.failed) if step.failed is not None else None,
            other=tree.node(step.other) if step.other is not None else None,
            best=tree.best, lineage=tree.lineage(step.parent), nodes=tree.nodes(), seed=step.seed,
        )  # fmt: skip

    def stats(self, target_id: str) -> dict[int, NodeStats]:
        """Visits and values of every node of a target, for viewers."""
        return self._trees[target_id].stats()

    def tree(self, target_id: str) -> TargetTree:
        """The target's tree, to read."""
        return self._trees[target_id]

    @property
    def evaluations(self) -> int:
        """Candidates begun, those in flight included."""
        return sum(len(tree.ids) for tree in self._trees.values())

    def worth(self) -> dict[str, float]:
        """By target, what one more attempt is expected to save, share of the model's time."""
        return {key: self._outlook(tree).rate for key, tree in self._trees.items()}

    def try_aside(self) -> bool:
        """Use an evaluation for what a model tries before it answers; False where none is left."""
        if self._at_work >= self.config.max_evaluations:
            return False
        self._aside += 1
        return True

    def count_aside(self, count: int) -> None:
        """Such evaluations of an earlier engine; negative for one that came to nothing."""
        self._aside += count

    def state(self) -> dict[str, object]:
        """What decisions depend on, to compare two searches."""
        trees = {
            target_id: (tree.nodes(), sorted(tree.flying), tree.stats(), tree.root_attempts, tree.tunes,
                        tree.improvements(self.config.improvement), tree.best,
                        [(c.head, c.value, c.best, c.below, c.attempts, c.size, c.members, c.tunes, c.tuning,
                          sorted(c.duplicates.items())) for c in sorted(tree.chains.values(), key=lambda c: c.head)])
            for target_id, tree in self._trees.items()
        }  # fmt: skip
        return {"trees": trees, "experience": self._experience.state()}

    # ---- money

    @property
    def _begun(self) -> int:
        return sum(tree.begun for tree in self._trees.values()) + self._aside

    @property
    def _at_work(self) -> int:
        """Candidates, but for those that a person is asked for."""
        return self._begun - sum(map(self._waiting, self._trees.values()))

    def _waiting(self, tree: TargetTree) -> int:
        """Steps that wait for a person."""
        return sum(step.proposer in self.config.people for step in tree.reserved)

    def _left_usd(self) -> float:
        return self.purse.left_usd(step for tree in self._trees.values() for step in tree.reserved)

    # ---- allocation

    @property
    def _moment(self) -> int:
        """Changes whenever any tree does: news of one target may be a reason to go on at another."""
        return sum(tree.version for tree in self._trees.values())

    def _outlook(self, tree: TargetTree) -> Outlook:
        price = self._experience.usual_price(self.config.proposers)
        known = self._outlooks.get(tree.target.id)
        if known is None or known[0] != (tree.version, price):
            known = ((tree.version, price), Outlook(tree, self.config, price))
            self._outlooks[tree.target.id] = known
        return known[1]

    def _ranked(self) -> list[TargetTree]:
        """Targets that may start a step now, the most deserving first; independent of the order they came in."""
        config = self.config
        worthy = [tree for tree in self._trees.values() if not self._outlook(tree).closed()]
        self._room = room = config.in_flight_per_target * (2 if len(worthy) == 1 else 1)
        ready = [
            tree for tree in worthy
            if tree.in_flight - self._waiting(tree) < room and self._idle.get(tree.target.id) != self._moment
        ]  # fmt: skip
        ready.sort(key=lambda tree: (-self._outlook(tree).rank, tree.target.id))
        first = [
            tree for tree in ready
            if tree.attempts < config.first_attempts and self._outlook(tree).open_share > config.first_attempts_gain
        ]  # fmt: skip
        first.sort(key=lambda tree: (tree.attempts, -self._outlook(tree).open_share, tree.target.id))
        done = sum(tree.attempts for tree in self._trees.values())
        if not first and ready and done % config.explore_every == config.explore_every - 1:
            # the forgotten ones, those that could well be won before those that hardly can
            first = [min(ready, key=lambda tree: (self._outlook(tree).doubtful, tree.attempts, tree.target.id))]
        return first + [tree for tree in ready if tree not in first]

    # ---- one target

    def _step_for(self, tree: TargetTree, can: Can, left_usd: float) -> Step | None:
        if any(tree.node(i).edge is Edge.START for i in tree.flying):
            return None
        for step in self._wishes.of(tree):
            held = self.purse.hold(step)
            if self.purse.costs(step) and (held > left_usd or left_usd <= 0):
                self._short = max(self._short or 0.0, held)
                continue
            if step.proposer in self.config.people and self._begun >= self.config.max_evaluations:
                # there would be no room for the reply
                continue
            if step.edge is Edge.TUNE and tree.in_flight >= self._room:
                # with nothing else to do, settings would use up what a person is asked for
                continue
            if step.edge in FREE or self._possible(tree, step, can):
                return step
        return None

    def _possible(self, tree: TargetTree, step: Step, can: Can) -> bool:
        """Whether the proposer can; a no is remembered until the tree changes."""
        if step.proposer == TEMPLATES and any(s.proposer == TEMPLATES for s in tree.reserved):
            # it reads the tree and would write the same kernel again
            return False
        content, refused = self._refused.get(tree.target.id, (-1, set()))
        if content != tree.content:
            refused = set()
            self._refused[tree.target.id] = (tree.content, refused)
        key = (step.edge, step.parent, step.failed, step.proposer)
        if key in refused:
            return False
        if can(step):
            return True
        refused.add(key)
        return False

    # ---- folding

    def _add(self, tree: TargetTree, node: Node) -> None:
        tree.add(node)
        self._owner[node.id] = tree
        self._experience.start(node.proposer, node.edge, 1)
        self._experience.pay(node.proposer, node.edge, node.cost_usd)

    def _reserve(self, tree: TargetTree, step: Step) -> None:
        tree.reserve(step)
        self._experience.ask(step.proposer, step.edge, 1)

    def _release(self, tree: TargetTree, step: Step) -> None:
        if step in tree.reserved:
            tree.release(step)
            self._experience.ask(step.proposer, step.edge, -1)

    def _fold_drop(self, tree: TargetTree, drop: Drop) -> None:
        step = drop.step
        self._experience.pay(step.proposer, step.edge, drop.cost_usd, counts=not drop.infra)
        if drop.infra:
            return
        tree.drop(drop)
        self._experience.start(step.proposer, step.edge, 1)
        self._experience.end(step.proposer, step.edge, value=None, before=None)
        if step.edge is Edge.REPAIR:
            self._end_repair(tree, step.failed, step.proposer, right=False)

    def _end_repair(self, tree: TargetTree, failed: int | None, proposer: str, *, right: bool) -> None:
        if failed is not None and failed in tree:
            evaluation = tree.node(failed).evaluation
            if evaluation is not None:
                self._experience.end_repair(evaluation.verdict, proposer, right=right)

    def _why_over(self) -> str:
        """One sentence that groups the targets by why nothing more is tried there."""
        groups: dict[str, list[str]] = {}
        for tree in self._trees.values():
            reason = self._outlook(tree).closed() or "no proposer has another idea"
            groups.setdefault(reason, []).append(tree.target.name)
        text = "; ".join(f"{reason} ({', '.join(names)})" for reason, names in groups.items())
        return f"Nothing more is worth trying: {text}."

