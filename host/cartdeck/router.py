"""Owns the choice of the cartridge that serves a request.

It does not know processes: it looks at manifests, the model spec and the settings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from cartdeck.calls.instance import InstanceForm, instance_forms
from cartdeck.discovery import Cartridge
from cartdeck.near import near_names
from cartdeck_protocol.caps import UNIVERSAL_CAPS, CapDefinition, CapUrn, UrnError, ValueKind, closeness
from cartdeck_protocol.caps.argument import kind_of
from cartdeck_protocol.errors import CartdeckError, Code, failure

NO_FIT = 2
_MOST_REMEMBERED = 4096
_TEXT_KINDS = frozenset({ValueKind.TEXT, ValueKind.JSON})


@dataclass(slots=True, frozen=True)
class Route:
    """The cartridge that was chosen, and its own definition of the cap."""

    cartridge: Cartridge
    definition: CapDefinition
    instance: InstanceForm
    urn: str
    """The cap's own URN, as text: what the request names on the wire."""
    text_outputs: frozenset[str]
    """The outputs that are text: no piece of them may end inside a character."""


def _routes_of(cartridge: Cartridge) -> Iterator[Route]:
    forms = instance_forms(cartridge.manifest.caps)
    for cap in cartridge.manifest.caps:
        texts = frozenset(name for name, output in cap.outputs.items() if kind_of(output.media) in _TEXT_KINDS)
        yield Route(cartridge, cap, forms[cap.alias], str(cap.urn), texts)


def parse_cap(text: str) -> CapUrn:
    """The cap that a caller names: a URN, or an alias alone. Raises BAD_ARGUMENT with the position of the fault."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be type-checked
        raise failure(Code.BAD_ARGUMENT, f"{text!r:.60} is no cap; expected text such as 'cap:echo'", argument="cap")
    if text[:4].lower() != "cap:":
        text = f"cap:{text}"
    try:
        return CapUrn.parse(text)
    except UrnError as error:
        raise failure(Code.BAD_ARGUMENT, f"{text!r} is no cap: {error}", argument="cap") from None


class Router:
    """The caps of all cartridges found. Made anew when discovery ran again."""

    def __init__(self, cartridges: Iterable[Cartridge], prefer: Sequence[str], *, unread: Sequence[str] = ()) -> None:
        """`unread` says where cartridges are declared that could not be read: one of them may be the one wanted."""
        self._unread = unread
        self.routes = [route for cartridge in cartridges for route in _routes_of(cartridge)]
        self._some_lack = any(not route.cartridge.is_available for route in self.routes)
        self._preference = {name: place for place, name in enumerate(prefer)}
        # A repeated request costs one dictionary look-up for what its text alone decides.
        self._serving: dict[CapUrn, tuple[list[Route], list[Route]]] = {}
        self._sole: dict[str, Route] = {}
        """By the text of a cap that one cartridge alone serves: there the arguments decide nothing."""

    def of_cartridge(self, name: str) -> Route | None:
        """The cap of a cartridge that says most about its instance; None where no cartridge has that name."""
        routes = [route for route in self.routes if route.cartridge.name == name]
        return max(routes, key=lambda route: len(route.instance.arguments), default=None)

    def route_text(self, cap: str, arguments: Mapping[str, Any]) -> Route:
        """`route` for a cap as text."""
        if type(cap) is str and (sole := self._sole.get(cap)) is not None:
            return sole
        urn = self._named(cap)
        route = self.route(urn, arguments)
        found = self._serving.get(urn)  # a thread that compiles a plan may have emptied it meanwhile
        if found is not None and len(found[0]) == 1 and len(self._sole) < _MOST_REMEMBERED:
            self._sole[cap] = route
        return route

    def _named(self, cap: str) -> CapUrn:
        """The cap that a text names. An alias whose URN does not hold its name, as `identity`, is that URN; any other
        stays as it is: several cartridges may have it."""
        urn = parse_cap(cap)
        named = [route.definition.urn for route in self.routes if route.definition.alias == cap]
        return urn if not named or any(one.serves(urn) for one in named) else named[0]

    def route(self, cap: CapUrn, arguments: Mapping[str, Any]) -> Route:
        """The cartridge for a call of `cap` with `arguments`.

        The closest specificity wins, then the cartridge whose `accepts` fits the model spec, then the order of the
        setting `prefer`. Raises NO_SUCH_CAP, CARTRIDGE_UNAVAILABLE or AMBIGUOUS_CAP.
        """
        found = self._serving.get(cap)
        if found is None:
            if len(self._serving) >= _MOST_REMEMBERED:  # requests may come from outside: what is remembered is bounded
                self._serving.clear()
                self._sole.clear()
            found = self._serving[cap] = self._closest(cap)
        candidates, unavailable = found
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            raise self._nothing_for(cap, unavailable)
        ranked = sorted((self._rank(route, arguments), place) for place, route in enumerate(candidates))
        (best, place), (second, rival) = ranked[:2]
        # Any cartridge answers a universal cap alike, so a tie there is no question for the caller.
        if best == second and candidates[place].definition.alias not in UNIVERSAL_CAPS:
            raise _ambiguous(cap, candidates[place], candidates[rival])
        return candidates[place]

    def check_default(self, cap: str, route: Route, arguments: Mapping[str, Any]) -> None:
        """Raises CARTRIDGE_UNAVAILABLE for a call with the default model, where that is none for `route`'s cartridge
        but for one that lacks its libraries: the model need not be obtained to say so."""
        if not self._some_lack or fit(route, arguments) != NO_FIT:
            return
        default = model_spec(route.definition, {})
        if default is None or model_spec(route.definition, arguments) != default:
            return
        for other in self._closest(self._named(cap))[1]:
            if fit(other, {"model": default}) < NO_FIT:
                name, reader = route.cartridge.name, other.cartridge
                raise failure(
                    Code.CARTRIDGE_UNAVAILABLE,
                    f"The default model of {cap}, {default}, is one for the cartridge {reader.name}, which lacks "
                    f"{reader.missing_text}. {name} can be asked with another model.",
                    argument="model",
                    details={"cartridge": reader.name, "install": [need.install for need in reader.missing]},
                )

    def _closest(self, cap: CapUrn) -> tuple[list[Route], list[Route]]:
        """The available candidates of the closest specificity, and every unavailable one."""
        serving = [route for route in self.routes if route.definition.urn.serves(cap)]
        available = [route for route in serving if route.cartridge.is_available]
        distances = [closeness(route.definition.urn, cap) for route in available]
        closest = [r for r, distance in zip(available, distances, strict=True) if distance == min(distances)]
        return closest, [route for route in serving if not route.cartridge.is_available]

    def _rank(self, route: Route, arguments: Mapping[str, Any]) -> tuple[int, int]:
        return fit(route, arguments), self._preference.get(route.cartridge.name, len(self._preference))

    def _nothing_for(self, cap: CapUrn, unavailable: list[Route]) -> CartdeckError:
        if unavailable:
            cartridge = unavailable[0].cartridge
            return failure(
                Code.CARTRIDGE_UNAVAILABLE,
                f"{cap} is served by the cartridge {cartridge.name}, which lacks {cartridge.missing_text}.",
                details={"cartridge": cartridge.name, "install": [need.install for need in cartridge.missing]},
            )
        near = near_names(_alias_of(cap), (route.definition.alias for route in self.routes))
        message = f"No cartridge serves {cap}."
        if near:
            message += f" Near it: {', '.join(near)}."
        elif not self.routes:
            message += " No cartridge was found at all."
        details: dict[str, Any] = {"near": near}
        if self._unread:
            cartridges = "1 cartridge" if len(self._unread) == 1 else f"{len(self._unread)} cartridges"
            message += f" {cartridges} could not be read: `cartdeck cartridges` says why."
            details["unread"] = list(self._unread)
        return failure(Code.NO_SUCH_CAP, message, details=details)


def fit(route: Route, arguments: Mapping[str, Any]) -> int:
    """How well the cartridge's `accepts` fits the model: 0 by a pattern, 1 where it takes any, NO_FIT by no pattern."""
    patterns = route.cartridge.manifest.accepts
    if not patterns:
        return 1
    spec = model_spec(route.definition, arguments)
    return 0 if spec is not None and any(fnmatchcase(spec, pattern) for pattern in patterns) else NO_FIT


def model_spec(definition: CapDefinition, arguments: Mapping[str, Any]) -> str | None:
    """The model spec of a call as text: what the caller gave, or the definition's default; None without either."""
    model = definition.arguments.get("model")
    if model is None:
        return None
    given = next((arguments[name] for name in ("model", str(model.media)) if name in arguments), None)
    if given is None:
        given = model.default if model.has_default else None
    if isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        given = f"{fields.get('repo_id', '')}:{fields.get('filename') or ''}"
    if isinstance(given, bytes):
        given = given.decode("utf-8", "replace")
    return None if given is None else str(given)


def _alias_of(cap: CapUrn) -> str:
    """What names the cap, for the search of near ones: its longest tag, since backends are short."""
    return max(cap.tags, key=len, default=str(cap))


def _ambiguous(cap: CapUrn, one: Route, other: Route) -> CartdeckError:
    names = sorted((one.cartridge.name, other.cartridge.name))
    return failure(
        Code.AMBIGUOUS_CAP,
        f"{names[0]} and {names[1]} both serve {cap}, and nothing decides between them: "
        f"{one.definition.urn} and {other.definition.urn}.",
        details={"candidates": names},
    )
