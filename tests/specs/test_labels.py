"""Labels of a run: their own words, by the rules of Kubernetes."""

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import parse
from fairlead.specs.training import Training

KUBERNETES = "apiVersion: fairlead.dev/v1alpha1\nkind: Training\nmetadata: {name: a, labels: %s}\nspec: {run: x}\n"


def test_both_forms_say_the_same() -> None:
    (short,) = parse("name: a\nrun: x\nlabels: {experiment: a, example.com/n: 1}\n")
    (long,) = parse(KUBERNETES % "{experiment: a, example.com/n: '1'}")
    assert isinstance(short, Training)
    assert short == long
    assert short.labels == {"experiment": "a", "example.com/n": "1"}


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("{a b: c}", "is not a label name"),
        ("{-a: c}", "is not a label name"),
        ("{UPPER.com/a: c}", "is not a label name"),
        ("{a: b/c}", "is not a label value"),
        (f"{{a: {'b' * 64}}}", "has 64 characters; give at most 63"),
        ("{fairlead.dev/run: c}", "names under fairlead.dev/ are Fairlead's own; choose another"),
        ("{app.kubernetes.io/managed-by: c}", "is set by Fairlead itself; choose another name"),
        (f"{{{', '.join(f'a{n}: b' for n in range(51))}}}", "51 labels; give at most 50"),
        ("[a]", "is not a mapping"),
    ],
)
def test_what_is_no_label_is_refused_with_its_line(labels: str, says: str) -> None:
    for text in (f"name: a\nrun: x\nlabels: {labels}\n", KUBERNETES % labels):
        with pytest.raises(InvalidSpec, match=r"<text>:3: (metadata\.)?labels") as refused:
            parse(text)
        assert says in str(refused.value)
