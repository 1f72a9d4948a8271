"""The rules of a spec as expressions that the API server evaluates, with the parser's own messages.

They are generated from the same tables as the parser. The language is CEL with Kubernetes' libraries for quantities,
lists and regular expressions (Kubernetes 1.29 and newer). ``[x].all(v, ...)`` names a value that is used more than
once.

See decision 9.
"""

import json

from fairlead.cluster.preflight import (
    IN_POD,
    MODEL_PLACES,
    NO_PLACES,
    NO_POD_MEMORY,
    NO_POPULATION,
    OF_A_REGISTRY,
    OTHER_PLACES,
)
from fairlead.policy.kinds.spec_updates import CHANGEABLE, PLACE_STAYS
from fairlead.specs import endpoint_engines, engines, serving, sweep_engines
from fairlead.specs import field_types as kinds
from fairlead.specs.constraints import MODEL, NAME, Constraints, Limit, Text
from fairlead.specs.dataset import NO_PRELOAD
from fairlead.specs.environment import NOT_MADE_IN_PODS
from fairlead.specs.field_types import SectionKey, Single
from fairlead.specs.formats.advice import advice, limits_of
from fairlead.specs.key import rules_of
from fairlead.specs.keys import OBJECTS
from fairlead.specs.overlay import SET_BY_FAIRLEAD, SET_BY_US
from fairlead.specs.pool import EITHER, LABEL_NAME, LABEL_VALUE, TAINT, TaintEffect
from fairlead.specs.quantities import (
    CPU,
    DURATION,
    EVERY_AUTO,
    NUMBER,
    SIZE,
    SPAN,
    STEPS,
)
from fairlead.specs.resources import (
    GPU,
    GPU_AUTO,
    GPU_MEMORY,
    GPU_MOST,
    GPU_NOTATION,
    NOT_IN_PODS,
    ONLY_PARTS,
    GpuRequest,
)
from fairlead.specs.sweep import CHANGEABLE_KEYS
from fairlead.specs.training import ENV_NAME, ENV_TOTAL
from fairlead.specs.workspace import HOME_IS_CLAIM

Rule = dict[str, str]


def rule(test: str, *sentence: str, at: str | None = None) -> Rule:
    """Return one rule of a schema.

    Args:
        sentence: Expressions that form the message together; fixed texts come from ``say``.
        at: The field that the message is about, such as ``.max_backoff``.
    """
    values = [part for part in sentence if not part.startswith(_TEXT)]
    texts = [json.loads(part[1:]) if part.startswith(_TEXT) else None for part in sentence]
    fields = {"rule": test, "message": "".join("it" if text is None else text for text in texts)}
    if values:
        # Formatted rather than concatenated, because the API server cannot limit the length of a number as text.
        template = "".join("%s" if text is None else text.replace("%", "%%") for text in texts)
        fields["messageExpression"] = f"{json.dumps(template)}.format([{', '.join(values)}])"
    return fields if at is None else fields | {"fieldPath": at}


def say(text: str) -> str:
    """Return a fixed part of a message."""
    return _TEXT + json.dumps(text)


def is_known(kind: Single) -> bool:
    """Return whether ``single_rules`` supports a kind of value."""
    if kind.choices is not None or kind.tags == kinds.NUMERIC or _is_number_or_word(kind):
        return True
    return kind in (kinds.TEXT, kinds.FLAG, kinds.SPOT, TAINT, GPU, kinds.SPAN) or id(kind) in {
        *_QUANTITIES,
        *_OR_AUTO,
    }


def single_rules(kind: Single, key: SectionKey, rules: Constraints) -> list[Rule]:
    """Return the rules for one value, which is ``self``."""
    give = "; " + advice(kind, key, rules)
    limits = limits_of(key, rules)
    if kind is kinds.TEXT:
        wanted = rules.get(key.attributes[0])
        return text_rules(wanted) if isinstance(wanted, Text) else []
    if kind in (kinds.FLAG, kinds.SPOT):
        return []
    if kind is TAINT:
        return _taint_rules(give)
    if kind.choices is not None:
        words = ", ".join(json.dumps(word) for word in kind.choices.split(", "))
        return [rule(f"self in [{words}]", QUOTED, say(f" is not one of {kind.choices}{give}"))]
    if kind.tags == kinds.NUMERIC:
        point = kind in POINTED
        return [
            rule(_between("self", limit, point=point), _DOLLARS if point else _WORD, say(f" is out of bounds{give}"))
            for limit in limits
            if limit is not None
        ]
    if kind is GPU:
        return _gpu_rules(give)
    if kind is kinds.SPAN:
        return _span_rules(limits, give)
    if _is_number_or_word(kind):
        return _number_or_word_rules(kind, limits[0], give)
    if id(kind) in _OR_AUTO:
        first, *others = _quantity_rules(_OR_AUTO[id(kind)], limits, give)
        # The other rules do not apply to text that is not such a quantity.
        return [{**first, "rule": f'{_WORD} == "auto" || {first["rule"]}'}, *others]
    return _quantity_rules(kind, limits, give)


def text_rules(wanted: Text) -> list[Rule]:
    """Return the rules for a text, which is ``self``; the schema limits its length."""
    rules = []
    if not wanted.blank:
        rules.append(rule('self.trim() != ""', say("it is blank; give some text, or remove the key")))
    if wanted.pattern is not None:
        # For a blank text one message is enough.
        test = (
            matches("self", wanted.pattern)
            if wanted.blank
            else f'self.trim() == "" || {matches("self", wanted.pattern)}'
        )
        rules.append(rule(test, QUOTED, say(f" is not {wanted.what}")))
    elif wanted.lines:
        sentence = "it holds a NUL or half a surrogate pair, which no program can be given"
        rules.append(rule('!self.contains("\\u0000")', say(sentence)))
    if not wanted.lines:
        sentence = " holds a line break or another control character; write it on one line"
        rules.append(rule(f"!self.matches({json.dumps(_CONTROL)})", QUOTED, say(sentence)))
    return rules


def name_rules(wanted: Limit | Text = NAME) -> list[Rule]:
    """Return the rules for an object's name; the API server itself allows longer ones, with dots."""
    assert isinstance(wanted, Text), "a name is not a number"
    name = "self.metadata.name"
    size = f"string({name}.size())"
    short = f"{name}.size() <= {wanted.max_length}"
    return [
        rule(short, _quoted(name), say(" has "), size, say(f" characters; give at most {wanted.max_length}")),
        rule(matches(name, wanted.pattern or ""), _quoted(name), say(f" is not {wanted.what}")),
    ]


def parent_update_rules(kind: str) -> list[Rule]:
    """Return the rules for updates of a workload with children; ``self`` is the object."""
    sentence = f"the spec of a {kind} stays as it is, since its runs follow from it; create another under a new name"
    return [rule("self.spec == oldSelf.spec", say(sentence))]


def sweep_update_rules() -> list[Rule]:
    """Return the rules for updates of a Sweep, as in ``fairlead.policy.kinds.spec_updates``; ``self`` is the object."""
    fixed = (key for key in OBJECTS["Sweep"].keys if key.metadata is None and key.name not in CHANGEABLE_KEYS)
    return [
        rule(
            f"self.spec.{key.name} == oldSelf.spec.{key.name}"
            if key.required
            else f"has(self.spec.{key.name}) ? has(oldSelf.spec.{key.name}) && self.spec.{key.name} == "
            f"oldSelf.spec.{key.name} : !has(oldSelf.spec.{key.name})",
            say(
                f"`{key.name}` of a Sweep stays as it is, so that its trials can be compared; create another under a "
                "new name"
            ),
        )
        for key in fixed
    ]


def pipeline_update_rules() -> list[Rule]:
    """Return the rules for updates of a Pipeline, which may change its triggers; ``self`` is the object."""
    sentence = (
        "the spec of a Pipeline that has neither `schedule` nor `on` stays as it is, since its runs follow from it, "
        "and one that has any of them keeps one; create another under a new name"
    )
    stands = "(has({0}.spec.schedule) || has({0}.spec.on))"
    both = f"{stands.format('self')} && {stands.format('oldSelf')}"
    return [rule(f"{both} || self.spec == oldSelf.spec", say(sentence))]


def child_update_rules(kind: str, parent: str) -> list[Rule]:
    """Return the rules for updates of a workload that another one submits; ``self`` is the object."""
    sentence = f"the spec of a {kind} stays as it is; change its {parent}, which submits others"
    return [rule("self.spec == oldSelf.spec", say(sentence))]


def update_rules(kind: str, *, has_place: bool) -> list[Rule]:
    """Return the rules for updates of a run, as in ``fairlead.policy.kinds.spec_updates``; ``self`` is the object.

    Args:
        has_place: Runs of the kind may name a place for their checkpoints.
    """
    phase, name = "self.status.phase", "self.metadata.name"
    phases = ", ".join(json.dumps(str(phase)) for phase in CHANGEABLE)
    # Written out, because the API server cannot limit the cost of comparing a value with a default.
    conditions = [f"has({owner}.spec.checkpoint) && has({owner}.spec.checkpoint.to)" for owner in ("self", "oldSelf")]
    place = "self.spec.checkpoint.to == oldSelf.spec.checkpoint.to"
    is_same = f"({conditions[0]} ? {conditions[1]} && {place} : !({conditions[1]}))"
    unedited = f"self.spec == oldSelf.spec || !has(self.status) || !has({phase})"
    rules = [
        rule(
            f'{unedited} || {phase} in [{phases}, "Succeeded"]',
            *(say("it is "), phase, say(" with the spec that it was started with. Suspend it first: `kubectl ")),
            *(say(f"annotate {kind.lower()} "), name, say(" fairlead.dev/intent=suspend --overwrite`; edit it when ")),
            say("it is Suspended, then annotate it with fairlead.dev/intent=run"),
        ),
        rule(
            f'{unedited} || {phase} != "Succeeded"',
            say("it has succeeded, so that its spec stays as it is; create another under a new name"),
        ),
    ]  # fmt: skip
    if not has_place:
        return rules
    return [
        *rules,
        rule(
            f"!has(self.status) || !has(self.status.checkpointStep) || {is_same}"
            " || has(self.spec.checkpoint) && has(self.spec.checkpoint.from)",
            say(f"it cannot change: {PLACE_STAYS}"),
            at=".spec.checkpoint.to",
        ),
    ]


def names_rules(names: Text) -> list[Rule]:
    """Return the rules for the names in a mapping, which is ``self``."""
    test = f"{matches('k', names.pattern or '')} && k.size() <= {names.max_length}"
    return [rule(f"self.all(k, {test})", _quoted(f"self.filter(k, !({test}))[0]"), say(f" is not {names.what}"))]


def env_rules() -> list[Rule]:
    """Return the rules for the variables of a run, which are ``self``."""
    own = f"self.filter(k, {matches('k', SET_BY_FAIRLEAD.pattern)})"
    return [
        *names_rules(ENV_NAME),
        rule(f"{own}.size() == 0", _quoted(f"{own}[0]"), say(SET_BY_US)),
        rule(
            f"self.map(k, k.size() + self[k].size()).sum() <= {ENV_TOTAL}",
            say(f"more than {ENV_TOTAL} characters in all; put large values in a file"),
        ),
    ]


def retry_rules() -> list[Rule]:
    """Return the rule that the first wait is not longer than the longest; ``self`` is the section."""
    first, longest = (_seconds(f"string(self.{name})") for name in ("backoff", "max_backoff"))
    durations = [matches(f"string(self.{name})", f"{DURATION}|{NUMBER}") for name in ("backoff", "max_backoff")]
    unread = " || ".join(f"!{duration}" for duration in durations)
    wait, words = f"string({first}[0])", " s is less than backoff, the first wait, "
    return [
        rule(
            f"!has(self.backoff) || !has(self.max_backoff) || {unread} || {longest}[0] >= {first}[0]",
            *(f"string({longest}[0])", say(words), wait, say(" s; give as much or more")),
            at=".max_backoff",
        )
    ]


def checkpoint_rules() -> list[Rule]:
    """Return the rules for storage that outlives the pod, as in ``cluster.preflight``; ``self`` is the section."""
    to, other = "self.to", say(f"; {OTHER_PLACES}")
    places = [(f"{to}.startsWith('/') || {to}.contains('://')", say(f" {IN_POD}"))]
    places += [(f"!{to}.startsWith('{scheme}://')", say(f": {scheme}:// {why}")) for scheme, why in NO_PLACES.items()]
    return [rule(f"!has({to}) || {is_kept}", _quoted(to), problem, other, at=".to") for is_kept, problem in places]


def population_rules() -> list[Rule]:
    """Return the rule against population-based training on a cluster; ``self`` is the section of `prune`."""
    return [rule("!has(self.rule) || self.rule != 'pbt'", say(NO_POPULATION), at=".rule")]


def model_rules() -> list[Rule]:
    """Return the rules for a model that pods can load, as in ``cluster.preflight``; ``self`` is an endpoint."""
    model = "self.model"
    is_url = f"({model}.contains('://') && !{model}.startsWith('run://'))"
    test = f"!has({model}) || {is_url} || !({model}.startsWith('run://') || {model}.contains('@'))"
    return [rule(test, _quoted(model), say(f" {OF_A_REGISTRY}; {MODEL_PLACES}"), at=".model")]


def environment_rules() -> list[Rule]:
    """Return the rule against packages for which nobody would build an image; ``self`` is the spec of any kind."""
    return [rule("!has(self.environment)", say(NOT_MADE_IN_PODS), at=".environment")]


def endpoint_rules() -> list[Rule]:
    """Return the rules for an endpoint, with or without an engine; ``self`` is its spec.

    The operator checks rules that need more parsing.
    """

    def refused(test: str, verb: str, why: str, *, at: str) -> Rule:
        return rule(f"!has(self.engine) || {test}", say("`engine: "), "self.engine", say(f"` {verb}: {why}"), at=at)

    reasons = endpoint_engines
    none_at = '!has(self.canary) || self.engine != "{}"'.format
    return [
        *model_rules(),
        *environment_rules(),
        refused("has(self.image)", reasons.MAKES_PODS, reasons.NO_IMAGE, at=".engine"),
        refused("!has(self.workdir)", reasons.MAKES_PODS, reasons.NO_WORKDIR, at=".workdir"),
        refused("!has(self.setup)", reasons.MAKES_PODS, reasons.NO_SETUP, at=".setup"),
        refused("!has(self.access)", reasons.ANSWERS, reasons.NO_ACCESS, at=".access"),
        refused(none_at(reasons.EndpointEngine.KSERVE), reasons.TRIES, reasons.NO_CANARY, at=".canary"),
        refused(none_at(reasons.EndpointEngine.SELDON), reasons.DIVIDES, reasons.NO_WEIGHT, at=".canary"),
    ]


def sweep_rules() -> list[Rule]:
    """Rules for a sweep with an engine; ``self`` is its spec. The operator says what needs its ranges read."""
    reasons = sweep_engines

    def refused(test: str, why: str, *, at: str) -> Rule:
        sentence = (say("`engine: "), "self.engine", say(f"` {reasons.PROPOSES}: {why}"))
        return rule(f"!has(self.engine) || {test}", *sentence, at=at)

    return [
        refused("!has(self.objectives) || self.objectives.size() == 0", reasons.ONE_OBJECTIVE, at=".objectives"),
        refused("has(self.objective) || has(self.objectives)", reasons.NO_OBJECTIVE, at=".engine"),
        refused("has(self.parallel) && string(self.parallel) != 'free'", reasons.NO_PARALLEL, at=".engine"),
    ]


def scale_rules() -> list[Rule]:
    """Return the rule that only an autoscaler sets the number of replicas; ``self`` is the section `scale`."""
    return [rule("!has(self.replicas) || has(self.by)", say(serving.NO_AUTOSCALER), at=".replicas")]


def dataset_rules() -> list[Rule]:
    """Return the rules of a Dataset that hold on a cluster alone."""
    return [rule("!has(self.preload) || !self.preload", say(NO_PRELOAD), at=".preload")]


def endpoint_update_rules() -> list[Rule]:
    """Return the rules for updates of an endpoint, which create a revision; ``self`` is the object."""
    engines = ("has(self.spec.engine)", "has(oldSelf.spec.engine)")
    test = f"({engines[0]} ? {engines[1]} && self.spec.engine == oldSelf.spec.engine : !{engines[1]})"
    sentence = "`engine` cannot change: no other engine can take over its requests; delete it, or give another name"
    return [rule(test, say(sentence))]


def sharing_rules() -> list[Rule]:
    """Return the rules that only a part of one GPU is shared, and that pods do not colocate; ``self`` is resources."""
    _, count, memories = _gpu_parts("string(self.gpu)")
    part = f"{count}.exists(n, n < 1.0) || {memories}.size() > 0 && {count}.all(n, n <= 1.0)"
    return [
        rule(
            f"!has(self.sharing) || self.sharing.size() == 0 || !has(self.gpu) || {part}",
            say(ONLY_PARTS),
            at=".sharing",
        ),
        rule("!has(self.colocate) || !self.colocate", say(NOT_IN_PODS), at=".colocate"),
    ]


def partition_rules() -> list[Rule]:
    """Return the rule against both partitions and sharing; ``self`` is the section of a pool's GPUs."""
    return [
        rule("!has(self.sharing) || !has(self.instances) || self.instances.size() == 0", say(EITHER), at=".instances")
    ]


def home_rules() -> list[Rule]:
    """Return the rule for the home of a workspace, which is ``self``."""
    return [rule("!has(self.path)", say(HOME_IS_CLAIM), at=".path")]


def engine_rules() -> list[Rule]:
    """Return the rules for a run on a cluster, with or without an engine; ``self`` is its spec.

    The operator checks rules that need more parsing. An elastic gang, and anything other than a share of a GPU, is
    recognized by the text of its value.
    """
    launches = ", ".join(json.dumps(engine.value) for engine in sorted(engines.LAUNCHES_ITSELF))

    def refused(test: str, verb: str, why: str, *, at: str, of: str = "") -> Rule:
        condition = f"!has(self.engine) || {of}" if of else "!has(self.engine) || "
        return rule(f"{condition}{test}", say("`engine: "), "self.engine", say(f"` {verb}: {why}"), at=at)

    others = f"!(self.engine in [{launches}]) || "
    return [
        rule("!has(self.checkpoint) || !has(self.checkpoint.memory_every)", say(NO_POD_MEMORY), at=".checkpoint"),
        *environment_rules(),
        rule("!has(self.queue) || has(self.engine)", say(engines.NO_ENGINE), at=".queue"),
        rule('!has(self.engine) || self.engine != "kueue" || has(self.queue)', say(engines.NO_QUEUE)),
        refused('!has(self.nodes) || !string(self.nodes).contains("..")', engines.PLACES, engines.NO_SPAN, at=".nodes"),
        refused(
            "!has(self.capacity) || !has(self.capacity.max_price)", engines.PLACES, engines.NO_PRICE, at=".capacity"
        ),
        refused("!has(self.priority) || self.priority == 0", engines.PLACES, engines.NO_PRIORITY, at=".priority"),
        refused("!has(self.elastic) || self.elastic != 'in_place'", engines.PLACES, engines.NO_IN_PLACE, at=".elastic"),
        refused("!has(self.preflight)", engines.PLACES, engines.NO_PREFLIGHT, at=".preflight"),
        refused("has(self.image)", engines.STARTS, engines.NO_IMAGE, at=".engine", of=others),
        refused("!has(self.framework)", engines.STARTS, engines.NO_FRAMEWORK, at=".framework", of=others),
        refused("!has(self.parallel)", engines.STARTS, engines.NO_SPLIT, at=".parallel", of=others),
        refused("!has(self.setup)", engines.STARTS, engines.NO_SETUP, at=".setup", of='self.engine != "mpijob" || '),
    ]


def taints_rules() -> list[Rule]:
    """Return the rule that each key and effect occurs once; ``self`` is the list."""
    same = " && ".join(f'u.find("{part}") == t.find("{part}")' for part in ("^[^=:]*", "[^:]*$"))
    once = f"self.filter(u, {same}).size() == 1"
    twice = f"self.filter(t, !({once}))[0]"
    return [
        rule(
            f"self.all(t, {once})",
            *(_quoted(f'{twice}.find("^[^=:]*")'), say(" with "), f'{twice}.find("[^:]*$")'),
            say(" is listed twice; list each once"),
        )
    ]


def matches(value: str, pattern: str) -> str:
    """Return a test that a value matches a whole pattern, in the API server's dialect, which has no lookahead."""
    whole = "^(?:" + pattern.replace("(?=[0-9])", "") + ")$"
    test = f"{value}.matches({json.dumps(whole)})"
    return f'({value} != "" && {test})' if "(?=[0-9])" in pattern else test


def _quoted(value: str) -> str:
    """Return an expression for the quoted, shortened value, as by ``fairlead.specs.constraints.quote``."""
    if value.replace(".", "").isidentifier() or value == _WORD:
        short = f'({value}.size() <= 60 ? {value} : {value}.substring(0, 57) + "...")'
        return f'"\\"%s\\"".format([{short}])'
    return f"[{value}].map(v, {_quoted('v')})[0]"


POINTED = (kinds.DOLLARS, kinds.FACTOR)
"""Numbers that need not be whole."""
_WORD = "string(self)"
_TEXT = "\x00"  # marks the fixed parts of a message until it is assembled
_CONTROL = r"[\x00-\x1f\x7f\x{85}\x{2028}\x{2029}]"
_SECONDS = {"ms": "0.001", "d": "86400.0", "h": "3600.0", "m": "60.0"}
_DOLLARS = f"(self < 9e18 && self == double(int(self)) ? string(int(self)) : {_WORD})"
QUOTED = _quoted("self")
SHOWN = f"(type(self) == int ? {_WORD} : {_quoted(_WORD)})"


_QUANTITIES = {
    id(kinds.SIZE): (f"{SIZE}|{NUMBER}", " is not a size in bytes"),
    id(kinds.CPU): (f"{CPU}|{NUMBER}", " is not a number of cores"),
    id(kinds.DURATION): (f"{DURATION}|{NUMBER}", " is not a duration"),
    id(kinds.EVERY): (
        f"{EVERY_AUTO}|{STEPS}|{DURATION}|{NUMBER}",
        " is neither a duration nor a number of steps nor `auto`",
    ),
    id(kinds.DURATION_OR_STEPS): (
        f"{STEPS}|{DURATION}|{NUMBER}",
        " is neither a duration nor a number of steps",
    ),
    id(kinds.NUMBER_OF_STEPS): (f"{STEPS}|[0-9]{{1,15}}", " is not a number of steps"),
    id(kinds.GPU_COUNT): (NUMBER, " is not a number"),
}


_OR_AUTO = {id(kinds.SIZE_OR_AUTO): kinds.SIZE, id(kinds.CPU_OR_AUTO): kinds.CPU}


def _between(value: str, limit: Limit, *, point: bool) -> str:
    low, high = (repr(float(end)) if point else str(int(end)) for end in (limit.low, limit.high))
    test = f"{value} >= {low} && {value} <= {high}"
    return f"{value} == {'0.0' if point else '0'} || ({test})" if limit.zero else test


def _quantity_rules(kind: Single, limits: list[Limit | None], give: str) -> list[Rule]:
    """Return the rules for a number or text that is a size, a number of cores, a duration or a number of GPUs."""
    rules = []
    pattern, unlike = _QUANTITIES[id(kind)]
    reads = matches(_WORD, pattern)
    rules.append(rule(reads, SHOWN, say(f"{unlike}{give}")))
    if kind is kinds.SIZE:
        value = _bytes(_WORD)
        rules.append(rule(f"!{reads} || {_is_whole(value)}", SHOWN, say(" is not a whole number of bytes")))
    elif kind is kinds.CPU:
        value = f"quantity({_WORD}).asApproximateFloat() * 1000.0"
        fine = f" is finer than a thousandth of a core{give}"
        rules.append(rule(f"!{reads} || {_is_whole(value)}", SHOWN, say(fine)))
    elif kind is kinds.GPU_COUNT:
        value = f"double({_WORD}) * 1000.0"
        fine = f" is finer than a thousandth of a GPU{give}"
        rules.append(rule(f"!{reads} || {_is_whole(value)}", SHOWN, say(fine)))
    elif kind is kinds.NUMBER_OF_STEPS:
        value = f'double({_WORD}.find("[0-9]+"))'
    else:
        value = f"{_seconds(_WORD)}[0]"
    if limits[0] is None:
        return rules
    fits = f"[{value}].all(v, {_between('v', limits[0], point=True)})"
    if kind in (kinds.EVERY, kinds.DURATION_OR_STEPS) and limits[1] is not None:
        steps = f'int({_WORD}.find("[0-9]+"))'
        fits = f"({matches(_WORD, STEPS)} ? {_between(steps, limits[1], point=False)} : {fits})"
    if kind is kinds.EVERY:
        fits = f"{_WORD} == {json.dumps(EVERY_AUTO)} || {fits}"
    return [*rules, rule(f"!{reads} || {fits}", SHOWN, say(f" is out of bounds{give}"))]


def _is_number_or_word(kind: Single) -> bool:
    return kind.what.startswith("a whole number, or `") and kind.text is not None


def _number_or_word_rules(kind: Single, limit: Limit | None, give: str) -> list[Rule]:
    """Return the rules for a whole number or one word."""
    word = f"{_WORD} == {json.dumps(kind.text)}"
    rules = [rule(f"type(self) == int || {word}", SHOWN, say(f" is not {kind.what}{give}"))]
    if limit is None:
        return rules
    fits = f"type(self) != int || {_between('int(self)', limit, point=False)}"
    return [*rules, rule(fits, SHOWN, say(f" is out of bounds{give}"))]


def _span_rules(limits: list[Limit | None], give: str) -> list[Rule]:
    """Return the rules for a whole number, or two joined by dots."""
    limit = limits[0]
    assert limit is not None
    reads = f"type(self) == int || {matches(_WORD, SPAN)}"
    ends = f'{_WORD}.split("..")'
    least, most = f"int({ends}[0])", f"int({ends}[{ends}.size() - 1])"
    backwards = f"({reads}) && {most} < {least}"
    outside = f"{ends}.exists(p, !({_between('int(p)', limit, point=False)}))"
    return [
        rule(reads, SHOWN, say(f" is not {kinds.SPAN.what}{give}")),
        rule(
            f"!({backwards})",
            *(SHOWN, say(" ends before it begins; did you mean `"), f"string({most})", say(".."), f"string({least})"),
            say("`?"),
        ),
        rule(f"!({reads}) || ({backwards}) || !{outside}", SHOWN, say(f" is out of bounds{give}")),
    ]


def _gpu_rules(give: str) -> list[Rule]:
    """Return the rules for GPUs: model, memory and count, joined by colons."""
    parts, count, memories = _gpu_parts(_WORD)
    reads = matches(_WORD, f"{GPU_NOTATION}|{NUMBER}")
    shown = f"string({count}[0])"
    memory_rule = rules_of(GpuRequest)["min_memory_bytes"]
    assert isinstance(memory_rule, Limit)
    in_bounds = _between("v", memory_rule, point=True)
    bounds = f" is out of bounds; give {memory_rule.low:g} to {int(memory_rule.high)}"
    return [
        rule(reads, SHOWN, say(f" is not {GPU.what}")),
        rule(
            f"!{reads} || {count}.all(n, {_is_whole('n * 1000.0')})",
            *(SHOWN, say(f" is finer than a thousandth of a GPU{give}")),
        ),
        rule(
            f"!{reads} || {count}.all(n, n > 0.0)",
            *(shown, say(" GPUs; ask for more than 0, or leave `gpu` out")),
        ),
        rule(
            f"!{reads} || {count}.all(n, n <= 1.0 || {_is_whole('n')})",
            *(shown, say(" GPUs; above 1 only whole GPUs, below 1 a share such as 0.5")),
        ),
        rule(
            f'!{reads} || !{parts}.exists(p, p == "{GPU_AUTO}") || {count}.all(n, n >= 1.0)',
            say("a share of "),
            shown,
            say(" has no memory of its own; leave the number out, or `auto`"),
        ),
        rule(
            f"!{reads} || {count}.all(n, n <= {GPU_MOST}.0)",
            shown,
            say(
                f" GPUs on one node; at most {GPU_MOST}. A model that is a number needs its letters, such as `RTX4090`"
            ),
        ),
        rule(
            f"!{reads} || {memories}.all(p, {_is_whole(_bytes('p'))} && [{_bytes('p')}].all(v, {in_bounds}))",
            *(_quoted(f"{memories}[0]"), say(bounds)),
        ),
        rule(
            f"!{reads} || {parts}.all(p, p.size() <= {MODEL.max_length} || !{matches('p', MODEL.pattern or '')})",
            say(f"the model has more characters; give at most {MODEL.max_length}"),
        ),
    ]


def _gpu_parts(value: str) -> tuple[str, str, str]:
    """Return expressions for the parts of a GPU request, and for its count and its memory, each as a list."""
    parts = f'{value}.split(":")'
    counts = f"{parts}.filter(p, {matches('p', r'[0-9.]+')}).map(p, double(p))"
    count = f"({matches(value, NUMBER)} ? [double({value})] : {counts})"
    memories = f"{parts}.filter(p, {matches('p', GPU_MEMORY)} && !{matches('p', MODEL.pattern or '')})"
    return parts, count, memories


def _taint_rules(give: str) -> list[Rule]:
    effects = "|".join(TaintEffect)
    key, value = LABEL_NAME.pattern, LABEL_VALUE.pattern
    return [
        rule(
            f'self.matches(":({effects})$")',
            *(QUOTED, say(f" does not end in a colon and one of {', '.join(TaintEffect)}{give}")),
        ),
        rule(
            f'!self.matches(":({effects})$") || ({matches("self", f"{key}(=({value}))?:({effects})")}'
            f' && self.find("=[^:]*").size() <= {LABEL_VALUE.max_length + 1})',
            *(QUOTED, say(f" is not a taint; the key is {LABEL_NAME.what.removeprefix('a ')}{give}")),
        ),
    ]


def _bytes(value: str) -> str:
    """Return an expression for the bytes of a size; Kubernetes has no ``B``, no space and no ``K`` for a thousand."""
    plain = f'{value}.replace(" ", "").replace("B", "").replace("K", "k").replace("ki", "Ki")'
    return f"quantity({plain}).asApproximateFloat()"


def _seconds(value: str) -> str:
    """Return an expression for the seconds of a duration, as a list."""
    units = "".join(f"p.endsWith({json.dumps(unit)}) ? {factor} : " for unit, factor in _SECONDS.items())
    parts = f'{value}.findAll("[0-9.]+[a-z]+").map(p, double(p.find("[0-9.]+")) * ({units}1.0))'
    return f"[{matches(value, NUMBER)} ? double({value}) : {parts}.sum()]"


def _is_whole(value: str) -> str:
    """Return a test that a floating-point number is whole."""
    return f"[{value}].all(w, w >= 1e15 || w - double(int(w + 0.5)) < 0.00001 && double(int(w + 0.5)) - w < 0.00001)"
