CREATE TABLE looopy_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT looopy_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE looopy_contexts (
	number INTEGER NOT NULL, 
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	turn_count BIGINT NOT NULL, 
	last_position BIGINT NOT NULL, 
	last_seq BIGINT NOT NULL, 
	visible_from BIGINT NOT NULL, 
	cleared_seq BIGINT NOT NULL, 
	open_turn BIGINT, 
	holder TEXT, 
	lease_until BIGINT, 
	owner_actor TEXT, 
	state TEXT NOT NULL, 
	metadata TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	last_activity BIGINT NOT NULL, 
	inbox_last BIGINT DEFAULT '0' NOT NULL, 
	inbox_waiting BIGINT DEFAULT '0' NOT NULL, 
	cancel_turn BIGINT, 
	last_ticket BIGINT DEFAULT '0' NOT NULL, 
	queued_until BIGINT, 
	last_write BIGINT, 
	tags TEXT, 
	rewound TEXT, 
	CONSTRAINT pk_looopy_contexts PRIMARY KEY (number), 
	CONSTRAINT uq_looopy_contexts_tenant_id UNIQUE (tenant_id, context_id), 
	CONSTRAINT ck_looopy_contexts_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT ck_looopy_contexts_number CHECK (number BETWEEN 1 AND 2147483647), 
	CONSTRAINT ck_looopy_contexts_last_position CHECK (last_position <= 4294901759), 
	CONSTRAINT ck_looopy_contexts_last_seq CHECK (last_seq <= 4294901759), 
	CONSTRAINT ck_looopy_contexts_turn_count CHECK (turn_count <= 4294901759)
);
CREATE TABLE looopy_turn_rows (
	id INTEGER NOT NULL, 
	epoch BIGINT NOT NULL, 
	continues BIGINT, 
	actor_id TEXT, 
	had_auth BIGINT NOT NULL, 
	outcome TEXT, 
	stop_reason TEXT, 
	start_seq BIGINT NOT NULL, 
	end_seq BIGINT, 
	first_position BIGINT NOT NULL, 
	last_position BIGINT NOT NULL, 
	user_position BIGINT, 
	started_at BIGINT NOT NULL, 
	ended_at BIGINT, 
	usage TEXT, 
	metadata TEXT, 
	process TEXT, 
	recovered_by TEXT, 
	CONSTRAINT pk_looopy_turn_rows PRIMARY KEY (id)
);
CREATE VIEW looopy_turns AS SELECT c.tenant_id AS tenant_id, c.context_id AS context_id, r.id & 4294967295 AS turn, r.epoch AS epoch, r.continues AS continues, r.actor_id AS actor_id, r.had_auth AS had_auth, CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.outcome, 'completed') END AS outcome, CASE WHEN r.end_seq IS NOT NULL THEN COALESCE(r.stop_reason, 'stop') END AS stop_reason, r.start_seq AS start_seq, r.end_seq AS end_seq, r.first_position AS first_position, r.last_position AS last_position, r.user_position AS user_position, r.started_at AS started_at, r.ended_at AS ended_at, COALESCE(r.usage, '{}') AS usage, COALESCE(r.metadata, '{}') AS metadata, r.process AS process, r.recovered_by AS recovered_by FROM looopy_contexts c CROSS JOIN looopy_turn_rows r ON r.id >= (c.number << 32) AND r.id <= (c.number << 32 | 4294967295);
CREATE TABLE looopy_message_rows (
	id INTEGER NOT NULL, 
	turn BIGINT NOT NULL, 
	iteration BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	meta TEXT, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_looopy_message_rows PRIMARY KEY (id)
);
CREATE VIEW looopy_messages AS SELECT c.tenant_id AS tenant_id, c.context_id AS context_id, r.id & 4294967295 AS position, r.turn AS turn, r.iteration AS iteration, r.seq AS seq, json_extract(r.body, '$.role') AS role, r.created_at AS created_at, r.meta AS meta, r.body AS body FROM looopy_contexts c CROSS JOIN looopy_message_rows r ON r.id >= (c.number << 32) AND r.id <= (c.number << 32 | 4294967295);
CREATE TABLE looopy_event_rows (
	id INTEGER NOT NULL, 
	turn BIGINT NOT NULL, 
	iteration BIGINT NOT NULL, 
	type TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	position BIGINT, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_looopy_event_rows PRIMARY KEY (id)
);
CREATE VIEW looopy_events AS SELECT c.tenant_id AS tenant_id, c.context_id AS context_id, r.id & 4294967295 AS seq, r.turn AS turn, r.iteration AS iteration, r.type AS type, r.created_at AS created_at, r.position AS position, r.body AS body FROM looopy_contexts c CROSS JOIN looopy_event_rows r ON r.id >= (c.number << 32) AND r.id <= (c.number << 32 | 4294967295);
CREATE TABLE looopy_word_rows (
	number BIGINT NOT NULL, 
	block BIGINT NOT NULL, 
	word TEXT NOT NULL, 
	places TEXT NOT NULL, 
	CONSTRAINT pk_looopy_word_rows PRIMARY KEY (number, block, word)
)
 WITHOUT ROWID

;
CREATE VIEW looopy_words AS SELECT c.tenant_id AS tenant_id, c.context_id AS context_id, r.block AS block, r.word AS word, r.places AS places FROM looopy_contexts c CROSS JOIN looopy_word_rows r ON r.number = c.number;
CREATE TRIGGER looopy_rows_of_contexts AFTER DELETE ON looopy_contexts BEGIN DELETE FROM looopy_turn_rows WHERE id >= (OLD.number << 32) AND id <= (OLD.number << 32 | 4294967295); DELETE FROM looopy_message_rows WHERE id >= (OLD.number << 32) AND id <= (OLD.number << 32 | 4294967295); DELETE FROM looopy_event_rows WHERE id >= (OLD.number << 32) AND id <= (OLD.number << 32 | 4294967295); DELETE FROM looopy_word_rows WHERE number = OLD.number; END;
CREATE TABLE looopy_artifacts (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	artifact_id TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	media_type TEXT NOT NULL, 
	status TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	sha256 TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	turn BIGINT NOT NULL, 
	data TEXT, 
	bytes BLOB, 
	description TEXT, 
	metadata TEXT, 
	row_schema TEXT, 
	row_count BIGINT DEFAULT '0' NOT NULL, 
	part_count BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_looopy_artifacts PRIMARY KEY (tenant_id, context_id, artifact_id, version), 
	CONSTRAINT fk_looopy_artifacts_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_artifacts_tenant CHECK (tenant_id <> '')
);
CREATE TABLE looopy_artifact_parts (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	artifact_id TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	part BIGINT NOT NULL, 
	start BIGINT NOT NULL, 
	size BIGINT NOT NULL, 
	sha256 TEXT NOT NULL, 
	first_row BIGINT NOT NULL, 
	row_count BIGINT NOT NULL, 
	blob TEXT, 
	bytes BLOB, 
	CONSTRAINT pk_looopy_artifact_parts PRIMARY KEY (tenant_id, context_id, artifact_id, version, part), 
	CONSTRAINT fk_looopy_artifact_parts_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_artifact_parts_tenant CHECK (tenant_id <> '')
);
CREATE INDEX ix_looopy_artifact_parts_tenant_id_sha256 ON looopy_artifact_parts (tenant_id, sha256);
CREATE TABLE looopy_inbox (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	entry BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	actor_id TEXT, 
	created_at BIGINT NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_looopy_inbox PRIMARY KEY (tenant_id, context_id, entry), 
	CONSTRAINT fk_looopy_inbox_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_inbox_tenant CHECK (tenant_id <> '')
);
CREATE TABLE looopy_turn_keys (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	turn BIGINT NOT NULL, 
	input_hash TEXT NOT NULL, 
	CONSTRAINT pk_looopy_turn_keys PRIMARY KEY (tenant_id, context_id, "key"), 
	CONSTRAINT fk_looopy_turn_keys_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_turn_keys_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE TABLE looopy_waiters (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	ticket BIGINT NOT NULL, 
	holder TEXT NOT NULL, 
	alive_until BIGINT NOT NULL, 
	CONSTRAINT pk_looopy_waiters PRIMARY KEY (tenant_id, context_id, ticket), 
	CONSTRAINT fk_looopy_waiters_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_waiters_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE TABLE looopy_context_index (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	label TEXT NOT NULL, 
	status TEXT NOT NULL, 
	touched BIGINT NOT NULL, 
	due_at BIGINT, 
	CONSTRAINT pk_looopy_context_index PRIMARY KEY (tenant_id, context_id, label), 
	CONSTRAINT fk_looopy_context_index_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_context_index_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE INDEX ix_looopy_context_index_all ON looopy_context_index (tenant_id, label, touched, context_id);
CREATE INDEX ix_looopy_context_index_due ON looopy_context_index (tenant_id, label, touched, context_id) WHERE due_at IS NOT NULL;
CREATE TABLE looopy_unindexed (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	CONSTRAINT pk_looopy_unindexed PRIMARY KEY (tenant_id, context_id), 
	CONSTRAINT fk_looopy_unindexed_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_unindexed_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE TABLE looopy_searched (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	upto BIGINT NOT NULL, 
	CONSTRAINT pk_looopy_searched PRIMARY KEY (tenant_id, context_id), 
	CONSTRAINT fk_looopy_searched_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_searched_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE TABLE looopy_lineage (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	parent TEXT, 
	position BIGINT NOT NULL, 
	CONSTRAINT pk_looopy_lineage PRIMARY KEY (tenant_id, context_id), 
	CONSTRAINT fk_looopy_lineage_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_lineage_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE INDEX ix_looopy_lineage_tenant_id_parent ON looopy_lineage (tenant_id, parent);
CREATE TABLE looopy_inner (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	outer_id TEXT NOT NULL, 
	call_key TEXT NOT NULL, 
	CONSTRAINT pk_looopy_inner PRIMARY KEY (tenant_id, context_id), 
	CONSTRAINT fk_looopy_inner_looopy_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES looopy_contexts (tenant_id, context_id) ON DELETE CASCADE, 
	CONSTRAINT ck_looopy_inner_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE UNIQUE INDEX ix_looopy_inner_tenant_id_outer_id_call_key ON looopy_inner (tenant_id, outer_id, call_key);
CREATE TABLE looopy_uploads (
	tenant_id TEXT NOT NULL, 
	blob TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	held_until BIGINT NOT NULL, 
	CONSTRAINT pk_looopy_uploads PRIMARY KEY (tenant_id, blob), 
	CONSTRAINT ck_looopy_uploads_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE TABLE looopy_spending (
	tenant_id TEXT NOT NULL, 
	account TEXT NOT NULL, 
	period TEXT NOT NULL, 
	tokens BIGINT NOT NULL, 
	nanos BIGINT NOT NULL, 
	held_tokens BIGINT NOT NULL, 
	held_nanos BIGINT NOT NULL, 
	unpriced BIGINT DEFAULT '0' NOT NULL, 
	held_unpriced BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_looopy_spending PRIMARY KEY (tenant_id, account, period), 
	CONSTRAINT ck_looopy_spending_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE TABLE looopy_reservations (
	tenant_id TEXT NOT NULL, 
	reservation TEXT NOT NULL, 
	place TEXT NOT NULL, 
	turn BIGINT NOT NULL, 
	tokens BIGINT NOT NULL, 
	nanos BIGINT NOT NULL, 
	charges TEXT NOT NULL, 
	made_at BIGINT NOT NULL, 
	unpriced BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_looopy_reservations PRIMARY KEY (tenant_id, reservation), 
	CONSTRAINT ck_looopy_reservations_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE INDEX ix_looopy_reservations_tenant_id_place_turn ON looopy_reservations (tenant_id, place, turn);
INSERT INTO looopy_version VALUES ('0001_initial');
