"""Quality results that teams already have: read, checked, in one table of items."""
