"""One call of an op as its kernel gets it: arguments by name, on meta tensors, on a card."""

from typing import Any

from memexp.simulate.cards import Card


class KernelCall:
    """`call["dim"]` is that argument, its default where it was left out, None where the op has none of that name."""

    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, card: Card) -> None:
        self.func, self.out, self.card = func, out, card
        self._arguments = dict(kwargs)
        for index, argument in enumerate(func._schema.arguments):
            if index < len(args):
                self._arguments[argument.name] = args[index]
            else:
                self._arguments.setdefault(argument.name, argument.default_value)

    @property
    def name(self) -> str:
        """Without namespace and overload."""
        return str(self.func._overloadpacket.__name__)

    @property
    def first(self) -> Any:
        """The first argument, which ops call `self`, `input` or otherwise."""
        return self._arguments[self.func._schema.arguments[0].name]

    def __getitem__(self, name: str) -> Any:
        return self._arguments.get(name)
