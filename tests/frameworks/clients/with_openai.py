"""Talks to a replica of tests.serving.predictors:Words with OpenAI's client: `with_openai.py HOST:PORT`."""

# mypy: ignore-errors
# Its library is in an environment of its own.

import sys

import openai

client = openai.OpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none", max_retries=0, timeout=60.0)
assert [model.id for model in client.models.list()] == ["model"]
assert client.models.retrieve("model").id == "model"

completion = client.completions.create(model="model", prompt="one two three", max_tokens=2, temperature=0)
assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("one two ", "length")
assert completion.usage is not None
assert completion.usage.total_tokens == 5
pieces = client.completions.create(model="model", prompt="one two", stream=True)
assert [piece.choices[0].text for piece in pieces] == ["one ", "two", ""]

hello = [{"role": "user", "content": "hi there"}]
chat = client.chat.completions.create(model="model", messages=hello, max_completion_tokens=50, seed=1)
assert chat.choices[0].message.content == "user: hi there assistant:"
text = ""
for chunk in client.chat.completions.create(
    model="model", messages=hello, stream=True, stream_options={"include_usage": True}
):
    if chunk.choices:
        text += chunk.choices[0].delta.content or ""
    else:
        assert chunk.usage is not None
        assert chunk.usage.completion_tokens == 4
assert text == "user: hi there assistant:"
for mistake, kind in (({"model": "other"}, openai.NotFoundError), ({"n": 2}, openai.BadRequestError)):
    try:
        client.completions.create(**{"model": "model", "prompt": "x", **mistake})
    except kind as error:
        assert error.body["message"], error  # noqa: PT017 (this is no test function)
    else:
        raise AssertionError(mistake)
print("served")
