"""An entry of a catalogue, for tests that read or pull one."""

ENTRY = """
[models.tiny]
description = "A tiny model"
family = "mixtral"
format = "q4_1"
licence = "MIT"
parameters = 1000
active_parameters = 100
size = 4096
sampling = {temperature = 0.7, top_k = 5}
upcycle = {experts = 4, top_k = 1}
[models.tiny.source]
kind = "pypi"
package = "tiny-package"
version = "1.0"
file = "tiny_package/tiny.gguf"
size = 12
sha256 = "%s"
""" % ("0" * 64)

HUB_ENTRY = """
[models.remote]
description = "A model of the Hub"
family = "qwen3_moe"
format = "bf16"
source = {kind = "huggingface", repo = "some-owner/Some.Model_1", revision = "main"}
"""
