"""What traces cannot show and files beside them do."""
