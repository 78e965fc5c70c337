"""A part of a model, as the options of a conversion name one. Without PyTorch, so that an expectation can be made without it."""
import re

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class Part:
    """The tensors of a Hugging Face directory that are converted: in these layers if any are named, or in none, and not excluded."""

    def __init__(self, layers=None, exclude=()):
        self.layers = None if layers is None else {number for span in layers.split(",") for number in self.span(span)}
        self.exclude = [".*".join(map(re.escape, pattern.split("*"))) for pattern in exclude]

    @staticmethod
    def span(text):
        first, _, last = text.partition("-")
        return range(int(first), int(last or first) + 1)

    def is_whole(self):
        return self.layers is None and not self.exclude

    def has(self, name):
        layer = LAYER.search(name)
        is_outside = self.layers is not None and layer and int(layer.group(1)) not in self.layers
        return not is_outside and not any(re.fullmatch(pattern, name) for pattern in self.exclude)

    def keys(self, tensors, flag, mapping):
        """The keys that the part fills. `flag` makes a tensor of a shape that is true or false all over: these go through the mapping in place of
        the values, so it says itself which tensors a key is made of. Errors: a key of which the part fills only some."""
        flags = mapping({name: flag(tensor.shape, self.has(name)) for name, tensor in tensors.items()})
        cut = sorted(key for key, value in flags.items() if bool(value.any()) != bool(value.all()))
        if cut:
            raise ValueError(f"keys that are only in part of it: {cut[:5]}")
        return {key for key, value in flags.items() if bool(value.all())}


def layer_of(key):
    """A Megatron key up to the number of its innermost layer; nothing for one in no layer."""
    return re.match(r"(?:.*\blayers\.\d+\.)?", key).group()


def add_options(parser):
    parser.add_argument("--layers")
    parser.add_argument("--exclude", action="append", default=[])


def chosen(arguments):
    """The part that the options name."""
    return Part(arguments.layers, arguments.exclude)
