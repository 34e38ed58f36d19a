"""The verdict for people and for other tools, from the one verdict document: text, Markdown, GitHub, JUnit."""
