"""How models write reasoning and tool calls: formats as data, and one parser that reads answers by them."""
