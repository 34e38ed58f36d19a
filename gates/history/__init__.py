"""The ledger of verdicts, and what a row of them shows that no single one can: drift, change points, ages.

Open `ledger.py` for where verdicts are kept, `chain.py` for drift since the anchor, `report.py` for what `replay history` prints.
"""
