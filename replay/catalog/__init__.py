"""Descriptions shipped as data: accelerators (`hardware/*.toml`) and models (`models/*.json`), each figure with its source."""
