"""The PostgreSQL engine (docs/scaling.md). Its driver is imported only if it is configured."""
