package bmcsim

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// object is a JSON object on the wire.
type object = map[string]any

// Addresses of the resources.
const (
	rootPath     = "/redfish/v1/"
	sessionsPath = "/redfish/v1/SessionService/Sessions"
	systemsPath  = "/redfish/v1/Systems"
	systemPath   = "/redfish/v1/Systems/1"
	resetPath    = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"
)

// session is one log-in.
type session struct {
	id      string
	expires time.Time
}

// routes is the tree of resources. Only the service root and the log-in are
// open, as DSP0266 section 13.3 has it.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	open := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, s.paused(h)) }
	guarded := func(pattern string, h http.HandlerFunc) { open(pattern, s.authenticated(h)) }
	open("GET /redfish", func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, object{"v1": rootPath}) })
	open("GET /redfish/v1", s.getRoot)
	open("GET /redfish/v1/{$}", s.getRoot)
	open("POST "+sessionsPath, s.login)
	guarded("GET /redfish/v1/SessionService", s.getSessionService)
	guarded("GET "+sessionsPath, s.getSessions)
	guarded("DELETE "+sessionsPath+"/{id}", s.logout)
	guarded("GET "+systemsPath, s.getSystems)
	guarded("GET "+systemPath, s.getSystem)
	guarded("PATCH "+systemPath, s.patchSystem)
	guarded("POST "+resetPath, s.postReset)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "ResourceMissingAtURI", "The resource at the URI "+r.URL.Path+" was not found.")
	})
	return mux
}

func (s *Server) faultsNow() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

func (s *Server) paused(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pause := s.faultsNow().Pause; pause != nil {
			select {
			case <-pause:
			case <-r.Context().Done():
				return
			}
		}
		s.cfg.Log.Debug("request", "method", r.Method, "path", r.URL.Path)
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		w.Header().Set("OData-Version", "4.0")
		next.ServeHTTP(w, r)
	})
}

func (s *Server) authenticated(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		user, password, basic := r.BasicAuth()
		ok := basic && s.credentials(user, password)
		if token := r.Header.Get("X-Auth-Token"); !ok && token != "" {
			s.mu.Lock()
			held, found := s.sessions[token]
			if found && time.Now().After(held.expires) {
				delete(s.sessions, token)
				found = false
			}
			s.mu.Unlock()
			ok = found
		}
		if !ok {
			s.refuse(w)
			return
		}
		next(w, r)
	}
}

func (s *Server) credentials(user, password string) bool {
	u := subtle.ConstantTimeCompare([]byte(user), []byte(s.cfg.Username))
	p := subtle.ConstantTimeCompare([]byte(password), []byte(s.cfg.Password))
	return u&p == 1 && !s.faultsNow().RefuseLogin
}

func (s *Server) refuse(w http.ResponseWriter) {
	s.mu.Lock()
	s.stats.Refusals++
	s.mu.Unlock()
	fail(w, http.StatusUnauthorized, "NoValidSession", "There is no valid session established with the implementation.")
}

func (s *Server) getRoot(w http.ResponseWriter, _ *http.Request) {
	reply(w, 200, object{
		"@odata.id": rootPath, "@odata.type": "#ServiceRoot.v1_5_0.ServiceRoot",
		"Id": "RootService", "Name": "Testbed BMC", "RedfishVersion": "1.11.0",
		"Systems":        link(systemsPath),
		"SessionService": link("/redfish/v1/SessionService"),
		"Links":          object{"Sessions": link(sessionsPath)},
	})
}

func (s *Server) getSessionService(w http.ResponseWriter, _ *http.Request) {
	reply(w, 200, object{
		"@odata.id": "/redfish/v1/SessionService", "@odata.type": "#SessionService.v1_1_8.SessionService",
		"Id": "SessionService", "Name": "Session Service", "ServiceEnabled": true,
		"SessionTimeout": int(sessionExpiry.Seconds()), "Sessions": link(sessionsPath),
	})
}

func (s *Server) getSessions(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	var ids []string
	for _, held := range s.sessions {
		ids = append(ids, sessionsPath+"/"+held.id)
	}
	s.mu.Unlock()
	reply(w, 200, collection(sessionsPath, "#SessionCollection.SessionCollection", ids))
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	var in struct{ UserName, Password string }
	if err := decodeBody(r.Body, &in); err != nil {
		fail(w, http.StatusBadRequest, "MalformedJSON", "The request body could not be parsed as JSON.")
		return
	}
	if !s.credentials(in.UserName, in.Password) {
		s.refuse(w)
		return
	}
	token, id := randomHex(16), randomHex(8)
	s.mu.Lock()
	for old, held := range s.sessions {
		if time.Now().After(held.expires) {
			delete(s.sessions, old)
		}
	}
	full := len(s.sessions) >= maxSessions
	if !full {
		s.sessions[token] = session{id: id, expires: time.Now().Add(sessionExpiry)}
		s.stats.Logins++
		s.stats.MostSessions = max(s.stats.MostSessions, len(s.sessions))
	}
	s.mu.Unlock()
	if full {
		fail(w, http.StatusServiceUnavailable, "SessionLimitExceeded", "The session establishment failed due to the number of simultaneous sessions exceeding the limit of the implementation.")
		return
	}
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", sessionsPath+"/"+id)
	reply(w, http.StatusCreated, object{
		"@odata.id": sessionsPath + "/" + id, "@odata.type": "#Session.v1_3_0.Session",
		"Id": id, "Name": "User Session", "UserName": in.UserName,
	})
}

func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	found := false
	for token, held := range s.sessions {
		if held.id == r.PathValue("id") {
			delete(s.sessions, token)
			s.stats.Logouts++
			found = true
		}
	}
	s.mu.Unlock()
	if !found {
		fail(w, http.StatusNotFound, "ResourceMissingAtURI", "The session was not found.")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) getSystems(w http.ResponseWriter, _ *http.Request) {
	reply(w, 200, collection(systemsPath, "#ComputerSystemCollection.ComputerSystemCollection", []string{systemPath}))
}

func collection(path, typ string, members []string) object {
	links := []object{}
	for _, m := range members {
		links = append(links, link(m))
	}
	return object{
		"@odata.id": path, "@odata.type": typ, "Name": typ[1:strings.IndexByte(typ, '.')],
		"Members@odata.count": len(members), "Members": links,
	}
}

func link(path string) object { return object{"@odata.id": path} }

func reply(w http.ResponseWriter, status int, body object) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}

// fail answers with a Redfish error (DSP0266 section 8.6).
func fail(w http.ResponseWriter, status int, id, text string) {
	reply(w, status, object{"error": object{
		"code": "Base.1.8.GeneralError", "message": "A general error has occurred. See ExtendedInfo for more information.",
		"@Message.ExtendedInfo": []object{{"MessageId": "Base.1.8." + id, "Message": text, "Severity": "Critical"}},
	}})
}

// decodeBody reads one JSON object and nothing behind it.
func decodeBody(r io.Reader, into any) error {
	d := json.NewDecoder(r)
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("request body: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("request body: more than one JSON value")
	}
	return nil
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b)
	return hex.EncodeToString(b)
}
