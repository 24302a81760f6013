"""What ran: ledger (loads and launches), phases (who launched), index (index.tsv and the dumps), binary (ELF facts)."""
